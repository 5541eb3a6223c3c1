let
  recorded = import ./recorded.nix ../.;
in
[
  {
    name = "outputs are named by environment and interpreter";
    expr = builtins.elem "core-debian-image" (map (one: one.name) recorded);
    expected = true;
  }
  {
    name = "with their digests";
    expr = builtins.all (one: builtins.match "sha256:[0-9a-f]{64}" one.digest != null) recorded;
    expected = true;
  }
]
