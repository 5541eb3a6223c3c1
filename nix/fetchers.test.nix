let
  # what the fetchers ask nixpkgs for
  asked = import ./fetchers.nix {
    pkgs = {
      fetchPypi = arguments: arguments;
      fetchurl = arguments: arguments;
    };
  };
  sha256 = "00";
in
[
  {
    name = "a wheel";
    expr = (
      asked.wheel {
        file = "six-1.17.0-py2.py3-none-any.whl";
        inherit sha256;
      }
    );
    expected = {
      pname = "six";
      version = "1.17.0";
      format = "wheel";
      dist = "py2.py3";
      python = "py2.py3";
      abi = "none";
      platform = "any";
      inherit sha256;
    };
  }
  {
    name = "an sdist";
    expr = (
      asked.sdist {
        file = "antlr4-python3-runtime-4.9.3.tar.gz";
        inherit sha256;
      }
    );
    expected = {
      pname = "antlr4-python3-runtime";
      version = "4.9.3";
      extension = "tar.gz";
      inherit sha256;
    };
  }
  {
    name = "a package of Debian's archive";
    expr = asked.deb {
      file = "libc6_2.36-9+deb12u13_amd64.deb";
      pool = "pool/main/g/glibc";
      inherit sha256;
    };
    expected = {
      name = "libc6_2.36-9+deb12u13_amd64.deb";
      urls = [ "mirror://debian/pool/main/g/glibc/libc6_2.36-9+deb12u13_amd64.deb" ];
      inherit sha256;
    };
  }
  {
    name = "a security update, which may be in the archive by now";
    expr = (
      asked.deb {
        file = "ca-certificates_20250419~deb12u2_all.deb";
        pool = "pool/updates/main/c/ca-certificates";
        inherit sha256;
      }
    );
    expected = {
      name = "ca-certificates_20250419-deb12u2_all.deb";
      urls = [
        "mirror://debian/../debian-security/pool/updates/main/c/ca-certificates/ca-certificates_20250419~deb12u2_all.deb"
        "mirror://debian/pool/main/c/ca-certificates/ca-certificates_20250419~deb12u2_all.deb"
      ];
      inherit sha256;
    };
  }
  {
    name = "a managed interpreter";
    expr =
      (asked.interpreter {
        file = "cpython-3.11.17+20261021-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz";
        build = "20261021";
        inherit sha256;
      }).url;
    expected = "https://github.com/astral-sh/python-build-standalone/releases/download/20261021/cpython-3.11.17%2B20261021-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz";
  }
]
