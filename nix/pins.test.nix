let
  pins = import ./pins.nix ../.;
  names = asked: map (one: one.name) (pins.debs asked);
  base = names {
    python = false;
    packages = [ ];
  };
in
[
  {
    name = "the base holds glibc, which nothing has to ask for";
    expr = builtins.elem "libc6" base;
    expected = true;
  }
  {
    name = "each package once";
    expr =
      builtins.length base == builtins.length (
        builtins.attrNames (
          builtins.listToAttrs (
            map (name: {
              inherit name;
              value = 1;
            }) base
          )
        )
      );
    expected = true;
  }
  {
    name = "Debian's Python only if it is asked for";
    expr = builtins.elem "python3.11-minimal" base;
    expected = false;
  }
  {
    name = "Debian's Python with what it needs";
    expr = builtins.elem "python3.11-minimal" (names {
      python = true;
      packages = [ ];
    });
    expected = true;
  }
  {
    name = "a package that is not pinned";
    fails = names {
      python = false;
      packages = [ "emacs" ];
    };
  }
  {
    name = "an interpreter that is not pinned";
    fails = pins.interpreter "2.7.18";
  }
]
