# The name that a file has in the Nix store: its own, unless that holds what no store name may.
#
# `envbuild nix preload` forms the same names; tests/nix holds the two together.
file:
let
  legal = builtins.match "[a-zA-Z0-9+?=_-][a-zA-Z0-9+?=_.-]*" file != null;
  # what lies between the characters that may stand there, and what stands for it
  plain = builtins.replaceStrings [ "~" "!" ] [ "-" "-" ] file;
in
if legal then file else plain
