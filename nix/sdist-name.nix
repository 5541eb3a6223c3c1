# Splits an sdist's file name (PEP 625, and what came before it) into what fetchPypi asks for.
let
  refuse = import ./refuse.nix;
in
file:
let
  parts = builtins.match "(.+)-([^-]+)[.](tar[.]gz|zip)" file;
  part = builtins.elemAt parts;
in
if parts == null then
  refuse {
    what = "not the name of an sdist";
    where = file;
    expected = "NAME-VERSION.tar.gz (PEP 625)";
  }
else
  {
    pname = part 0;
    version = part 1;
    extension = part 2;
  }
