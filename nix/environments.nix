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
    builtins.addErrorContext "while reading envs/${name}.toml" (
      builtins.fromTOML (builtins.readFile (project + "/envs/${name}.toml"))
    );
  environment =
    name:
    let
      declared =
        if builtins.elem name names then
          read name
        else
          refuse {
            what = "there is no environment ${name}";
            where = "envs";
            expected = "one of ${builtins.concatStringsSep ", " names}";
          };
      base = declared.base or null;
    in
    {
      # its own file and its base's
      files = [ name ] ++ (if base == null then [ ] else [ base ]);
      python = declared.python or (if base == null then "" else (read base).python or "");
      # Debian packages of its image
      packages = declared.image.packages or [ ];
    };
in
{
  inherit names environment;
}
