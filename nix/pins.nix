# Reads what images stand on: locks/interpreters.toml and locks/image-base.toml.
let
  refuse = import ./refuse.nix;
  schema = 1;
  read =
    project: file: mend:
    let
      path = project + "/${file}";
      document = import ./toml.nix {
        inherit mend;
        where = file;
        text = builtins.readFile path;
      };
    in
    if !builtins.pathExists path then
      refuse {
        inherit mend;
        what = "there is no such file";
        where = file;
      }
    else if document.schema or null != schema then
      refuse {
        what = "schema: not one that this envbuild reads";
        where = file;
        expected = schema;
        found = document.schema or null;
        mend = "use the envbuild that wrote it, or remove the file and ${mend}";
      }
    else
      document;
in
project:
let
  interpreters = read project "locks/interpreters.toml" "run `envbuild lock`";
  base = read project "locks/image-base.toml" "run `envbuild lock --base`";
  byName = builtins.listToAttrs (
    map (one: {
      inherit (one) name;
      value = one;
    }) base.packages
  );
  pinned =
    name:
    byName.${name} or (refuse {
      what = "the Debian package ${name} is not pinned";
      expected = "it in locks/image-base.toml";
      mend = "run `envbuild lock --base`";
    });
  # packages with all that they need when they run
  closure =
    names:
    map (one: one.package) (
      builtins.genericClosure {
        startSet = map (name: {
          key = name;
          package = pinned name;
        }) names;
        operator =
          one:
          map (name: {
            key = name;
            package = pinned name;
          }) one.package.depends;
      }
    );
in
{
  # the archive of a managed interpreter
  interpreter =
    version:
    let
      found = builtins.filter (one: one.version == version) interpreters.interpreters;
    in
    if found == [ ] then
      refuse {
        what = "Python ${version} has no pin";
        where = "locks/interpreters.toml";
        mend = "run `envbuild lock`";
      }
    else
      builtins.head found;

  # the .debs of an image
  debs =
    {
      # with Debian's Python
      python,
      # what the environment asks for besides
      packages,
    }:
    closure (base.base ++ (if python then base.python else [ ]) ++ packages);
}
