# The name that a file has in the Nix store: characters that no store name may hold become "-", as
# nixpkgs' fetchers have it.
#
# `envbuild nix preload` forms the same names; tests/nix holds the two together.
file:
builtins.concatStringsSep "-" (
  builtins.filter builtins.isString (builtins.split "[^a-zA-Z0-9+._?=-]+" file)
)
