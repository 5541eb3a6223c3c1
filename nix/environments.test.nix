let
  environments = import ./environments.nix ./fixture;
  inherit (environments) environment;
in
[
  {
    name = "they are the files of envs/, without hidden ones";
    expr = environments.names;
    expected = [
      "toy"
      "variant"
    ];
  }
  {
    name = "an environment's own interpreter";
    expr = (environment "toy").python;
    expected = "3.11.17";
  }
  {
    name = "the interpreter of a variant is its base's";
    expr = (environment "variant").python;
    expected = "3.11.17";
  }
  {
    name = "a variant needs its base's file";
    expr = (environment "variant").files;
    expected = [
      "variant"
      "toy"
    ];
  }
  {
    name = "Debian packages are asked for by an environment, not by its base";
    expr = map (name: (environment name).packages) environments.names;
    expected = [
      [ "bash" ]
      [ ]
    ];
  }
  {
    name = "one that is not declared";
    fails = (environment "nowhere").python;
  }
]
