let
  read =
    text:
    import ./toml.nix {
      inherit text;
      where = "locks/images.toml";
      mend = "finish it";
    };
in
[
  {
    name = "a file";
    expr = read "a = 1\r\n";
    expected = {
      a = 1;
    };
  }
  {
    name = "a merge that was not finished";
    fails = read "<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> other\n";
  }
]
