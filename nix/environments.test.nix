let
  environments = import ./environments.nix ../.;
in
[
  {
    name = "they are read from envs/";
    expr = builtins.elem "core" environments.names;
    expected = true;
  }
  {
    name = "an environment's own interpreter";
    expr = builtins.match "3[.]11[.][0-9]+" (environments.environment "core").python != null;
    expected = true;
  }
  {
    name = "the interpreter of a variant is its base's";
    expr = (environments.environment "gpu-managed").python;
    expected = (environments.environment "gpu").python;
  }
  {
    name = "a variant needs its base's file";
    expr = (environments.environment "gpu-managed").files;
    expected = [
      "gpu-managed"
      "gpu"
    ];
  }
  {
    name = "one that is not declared";
    fails = (environments.environment "nowhere").python;
  }
]
