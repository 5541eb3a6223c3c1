# Which images the project expects: locks/images.toml, as far as they are built by Nix.
#
# Each recorded one has an output and a check of its digest.
let
  refuse = import ./refuse.nix;
  schema = 1;
in
project:
let
  path = project + "/locks/images.toml";
  document = import ./toml.nix {
    where = "locks/images.toml";
    text = builtins.readFile path;
    mend = "finish it, then `envbuild image ENV --record`";
  };
  there = (import ./environments.nix project).names;
  images =
    if !builtins.pathExists path then
      [ ]
    else if document.schema or null != schema then
      refuse {
        what = "schema: not one that this envbuild reads";
        where = "locks/images.toml";
        expected = schema;
        found = document.schema or null;
        mend = "use the envbuild that wrote it";
      }
    else
      document.images;
  # of other bases, and with wheels that were built elsewhere, envbuild's own --check tells
  built =
    one:
    # that one is recorded which is gone, drift checks tell
    builtins.elem one.environment there
    && one.base == "debian"
    && one.compression == "gzip"
    && !(one ? built);
in
map (one: {
  inherit (one) environment interpreter digest;
  # the output's name
  name =
    one.environment + (if one.interpreter == "managed" then "" else "-${one.interpreter}") + "-image";
}) (builtins.filter built images)
