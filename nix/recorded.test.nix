let
  recorded = import ./recorded.nix ./fixture;
in
[
  {
    name = "outputs are named by environment and interpreter; of other bases and forms there is none";
    expr = map (one: one.name) recorded;
    expected = [
      "toy-image"
      "toy-debian-image"
    ];
  }
  {
    name = "no record, no images";
    expr = import ./recorded.nix ./fixture/envs;
    expected = [ ];
  }
]
