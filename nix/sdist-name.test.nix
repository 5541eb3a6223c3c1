let
  sdistName = import ./sdist-name.nix;
in
[
  {
    name = "hyphens in the name";
    expr = sdistName "antlr4-python3-runtime-4.9.3.tar.gz";
    expected = {
      pname = "antlr4-python3-runtime";
      version = "4.9.3";
      extension = "tar.gz";
    };
  }
  {
    name = "a zip";
    expr = (sdistName "thing-1.0.post1.zip").extension;
    expected = "zip";
  }
  {
    name = "a wheel is none";
    fails = sdistName "thing-1.0-py3-none-any.whl";
  }
]
