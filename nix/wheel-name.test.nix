let
  wheelName = import ./wheel-name.nix;
in
[
  {
    name = "pure Python";
    expr = wheelName "nest_asyncio2-1.7.4-py3-none-any.whl";
    expected = {
      pname = "nest_asyncio2";
      version = "1.7.4";
      python = "py3";
      abi = "none";
      platform = "any";
    };
  }
  {
    name = "several platforms";
    expr = wheelName "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl";
    expected = {
      pname = "numpy";
      version = "2.4.6";
      python = "cp311";
      abi = "cp311";
      platform = "manylinux_2_27_x86_64.manylinux_2_28_x86_64";
    };
  }
  {
    name = "a build tag stays with the version";
    expr = (wheelName "thing-1.0-2local-py2.py3-none-any.whl").version;
    expected = "1.0-2local";
  }
  {
    name = "a local version";
    expr = (wheelName "torch-2.8.0+cu128-cp310-cp310-linux_x86_64.whl").version;
    expected = "2.8.0+cu128";
  }
  {
    name = "an sdist is none";
    fails = wheelName "thing-1.0.tar.gz";
  }
  {
    name = "too few parts";
    fails = wheelName "thing-1.0-py3-none.whl";
  }
]
