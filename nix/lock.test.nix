let
  read =
    text:
    import ./lock.nix {
      name = "toy";
      inherit text;
    };
  sha = builtins.concatStringsSep "" (builtins.genList (_: "0a") 32);
  lock =
    {
      version ? "1.0",
      schema ? "1",
      packages ? "",
      tool ? "",
    }:
    ''
      lock-version = "${version}"
      ${packages}
      [tool.envbuild]
      schema = ${schema}
      ${tool}
    '';
  package =
    {
      name ? "some-thing",
      path ? "../wheelhouse/Some.Thing-1.0-py3-none-any.whl",
      hash ? sha,
      kind ? "wheels",
    }:
    let
      entry = ''{ path = "${path}", size = 1, hashes = { sha256 = "${hash}" } }'';
    in
    ''
      [[packages]]
      name = "${name}"
      version = "1.0"
      ${if kind == "wheels" then "wheels = [${entry}]" else "sdist = ${entry}"}
    '';
  sdist = package {
    name = "old";
    path = "../wheelhouse/old-1.0.tar.gz";
    kind = "sdist";
  };
  built = ''
    [tool.envbuild.built.old]
    version = "1.0"
    wheel = { path = "../wheelhouse/old-1.0-py3-none-any.whl", size = 1, hashes = { sha256 = "${sha}" } }
    [[tool.envbuild.build-environments]]
    requires = "setuptools"
    wheels = [{ path = "../wheelhouse/setuptools-71-py3-none-any.whl", size = 1, hashes = { sha256 = "${sha}" } }]
  '';
  file = one: { inherit (one) file sha256; };
in
[
  {
    name = "a wheel";
    expr =
      map file
        (read (lock {
          packages = package { };
        })).wheels;
    expected = [
      {
        file = "Some.Thing-1.0-py3-none-any.whl";
        sha256 = sha;
      }
    ];
  }
  {
    name = "a pure sdist with the wheel that is built of it";
    expr =
      map (one: one.wheel.file)
        (read (lock {
          packages = sdist;
          tool = built;
        })).pure;
    expected = [ "old-1.0-py3-none-any.whl" ];
  }
  {
    name = "what building needs";
    expr =
      map (one: one.file)
        (read (lock {
          packages = sdist;
          tool = built;
        })).buildWheels;
    expected = [ "setuptools-71-py3-none-any.whl" ];
  }
  {
    name = "an sdist that no hash of a wheel is known of";
    expr =
      (read (lock {
        packages = sdist;
      })).unbuilt;
    expected = [ "old" ];
  }
  {
    name = "the tag is of the lock";
    expr = builtins.stringLength (read (lock { })).tag;
    expected = 12;
  }
  {
    name = "a lock of a newer schema";
    fails = read (lock {
      schema = "2";
    });
  }
  {
    name = "a lock of a newer format";
    fails = read (lock {
      version = "2.0";
    });
  }
  {
    name = "a lock of another tool";
    fails = read ''lock-version = "1.0"'';
  }
  {
    name = "a file elsewhere";
    fails =
      (read (lock {
        packages = package { path = "../other/Some.Thing-1.0-py3-none-any.whl"; };
      })).wheels;
  }
  {
    name = "a file above";
    fails =
      (read (lock {
        packages = package { path = "../wheelhouse/../x-1.0-py3-none-any.whl"; };
      })).wheels;
  }
  {
    name = "a hash that is none";
    fails =
      (read (lock {
        packages = package { hash = "00"; };
      })).wheels;
  }
  {
    name = "a file of another package";
    fails =
      (read (lock {
        packages = package { name = "other"; };
      })).wheels;
  }
]
