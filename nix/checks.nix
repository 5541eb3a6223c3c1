# What `nix flake check` holds this project to.
{
  pkgs,
  tool,
  images,
  # the formatter, in a list, if there is one
  nixfmt,
}:
let
  root = ../.;
  part =
    name:
    builtins.path {
      inherit name;
      path = root + "/${name}";
    };

  # the digest that stands in locks/images.toml, and the one that was built
  digest = one: {
    name = "${one.name}-digest";
    value =
      pkgs.runCommand "${one.name}-digest"
        {
          index = "${images.${one.name}}/index.json";
          expected = one.digest;
        }
        ''
          found=$(cat $index)
          case $found in
            *"\"digest\":\"$expected\""*) echo "$expected" > $out ;;
            *)
              echo "locks/images.toml: ${one.name}: not the image that is recorded" >&2
              echo "  expected: $expected" >&2
              echo "  found: $found" >&2
              echo "  mend: envbuild image ${one.environment} --interpreter ${one.interpreter} --record" >&2
              exit 1
              ;;
          esac
        '';
  };

  sources = builtins.path {
    name = "nix-files";
    path = root;
    filter =
      path: type:
      builtins.match ".*[.]nix" path != null || (type == "directory" && path == toString (root + "/nix"));
  };
in
builtins.listToAttrs (map digest (import ./recorded.nix root))
// {
  drift = pkgs.runCommand "drift" { nativeBuildInputs = [ tool ]; } ''
    mkdir project
    cp -r ${part "envs"} project/envs
    cp -r ${part "sites"} project/sites
    cp -r ${part "locks"} project/locks
    cp ${part "flake.nix"} project/flake.nix
    cp ${part "flake.lock"} project/flake.lock
    envbuild --project project lock --check | tee $out
  '';

  unit = pkgs.runCommand "unit" { } ''
    echo "${toString (import ./unit.nix)} tests" > $out
  '';
}
// builtins.listToAttrs (
  map (program: {
    name = "formatting";
    value = pkgs.runCommand "formatting" { nativeBuildInputs = [ program ]; } ''
      nixfmt --check ${sources}/flake.nix ${sources}/nix/*.nix
      echo formatted > $out
    '';
  }) nixfmt
)
