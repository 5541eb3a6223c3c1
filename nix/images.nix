# All images of a project, by the names of their outputs.
{ mkImage }:
project:
let
  environments = import ./environments.nix project;
  recorded = import ./recorded.nix project;
  lock =
    name:
    import ./lock.nix {
      inherit name;
      file = project + "/locks/pylock.${name}.toml";
    };
  # a missing or unreadable lock is said when its image is asked for, not left out
  hasAll =
    name:
    let
      tried = builtins.tryEval ((lock name).unbuilt == [ ]);
    in
    !tried.success || tried.value;
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
