let
  pins = import ./pins.nix ./fixture;
  names = asked: builtins.sort builtins.lessThan (map (one: one.name) (pins.debs asked));
in
[
  {
    name = "the base with what it needs, each once, though packages need each other";
    expr = names {
      python = false;
      packages = [ ];
    };
    expected = [
      "libc6"
      "libgcc-s1"
      "tzdata"
    ];
  }
  {
    name = "Debian's Python and what an environment asks for";
    expr = names {
      python = true;
      packages = [ "bash" ];
    };
    expected = [
      "bash"
      "libc6"
      "libgcc-s1"
      "libtinfo6"
      "python3.11"
      "tzdata"
      "zlib1g"
    ];
  }
  {
    name = "a package that is not pinned";
    fails = names {
      python = false;
      packages = [ "emacs" ];
    };
  }
  {
    name = "an interpreter";
    expr = (pins.interpreter "3.11.17").build;
    expected = "20260101";
  }
  {
    name = "an interpreter that is not pinned";
    fails = pins.interpreter "2.7.18";
  }
  {
    name = "no pins at all";
    fails = (import ./pins.nix ./fixture/envs).interpreter "3.11.17";
  }
]
