# Splits a wheel's file name (PEP 427) into what nixpkgs' fetchPypi asks for.
#
# The build tag, where there is one, stays with the version: together they stand between the name
# and the last three parts, which is all that matters for finding the file.
let
  refuse = import ./refuse.nix;
in
file:
let
  parts = builtins.match "([^-]+)-(.+)-([^-]+)-([^-]+)-([^-]+)[.]whl" file;
  part = builtins.elemAt parts;
in
if parts == null then
  refuse {
    what = "not the name of a wheel";
    where = file;
    expected = "NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl (PEP 427)";
  }
else
  {
    pname = part 0;
    version = part 1;
    python = part 2;
    abi = part 3;
    platform = part 4;
  }
