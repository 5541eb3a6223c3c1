# What the flake needs to know of envs/: which environments there are, and their interpreters.
let
  refuse = import ./refuse.nix;
in
project:
let
  entries = builtins.readDir (project + "/envs");
  stem = file: builtins.match "([^.].*)[.]toml" file;
  names = builtins.concatMap (
    file: if stem file == null || entries.${file} == "directory" then [ ] else stem file
  ) (builtins.attrNames entries);
  read =
    name:
    import ./toml.nix {
      where = "envs/${name}.toml";
      text = builtins.readFile (project + "/envs/${name}.toml");
      mend = "finish it";
    };
  # names that a lock can have (PEP 751): they stand in commands, too
  known =
    name:
    builtins.isString name
    && builtins.match "[a-z0-9]+(-[a-z0-9]+)*" name != null
    && builtins.elem name names;
  # an empty text stands for the base's
  own = declared: key: if declared.${key} or "" == "" then null else declared.${key};
  environment =
    name:
    let
      declared =
        if known name then
          read name
        else
          refuse {
            what = "there is no environment ${builtins.toJSON name}";
            where = "envs";
            expected = "one of ${builtins.concatStringsSep ", " names}";
          };
      base =
        if !(declared ? base) then
          null
        else if known declared.base then
          declared.base
        else
          refuse {
            what = "base: no such environment";
            where = "envs/${name}.toml";
            expected = "one of ${builtins.concatStringsSep ", " names}";
            found = declared.base;
          };
      inherited = if base == null then { } else read base;
      python = own declared "python";
    in
    # what is wrong of it is said first
    builtins.seq declared {
      # its own file and its base's
      files = [ name ] ++ (if base == null then [ ] else [ base ]);
      python = if python == null then inherited.python or "" else python;
      # Debian packages of its image
      packages = declared.image.packages or [ ];
    };
in
{
  inherit names environment;
}
