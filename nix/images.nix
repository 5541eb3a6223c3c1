# All images of a project, by the names of their outputs.
{ mkImage }:
project:
let
  environments = import ./environments.nix project;
  recorded = import ./recorded.nix project;
  # Whether every sdist of a lock has its wheel there. The lines are looked at, and not what they
  # mean: a lock that is missing or broken is said when its image is asked for, and must not keep
  # anybody from the other outputs, such as the tool that mends it.
  hasAll =
    name:
    let
      path = project + "/locks/pylock.${name}.toml";
      lines = builtins.filter builtins.isString (builtins.split "\n" (builtins.readFile path));
      count = form: builtins.length (builtins.filter (line: builtins.match form line != null) lines);
    in
    !builtins.pathExists path || count "sdist = .*" == count "\\[tool[.]envbuild[.]built[.].*";
  managed = map (name: {
    name = "${name}-image";
    value = mkImage {
      inherit project;
      environment = name;
    };
  }) (builtins.filter hasAll environments.names);
  others = map (one: {
    inherit (one) name;
    value = mkImage {
      inherit project;
      inherit (one) environment interpreter;
    };
  }) (builtins.filter (one: one.interpreter != "managed") recorded);
in
builtins.listToAttrs (managed ++ others)
