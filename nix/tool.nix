# The `envbuild` program: this folder's envbuild/ with the Python and the libraries of nixpkgs.
{ pkgs, fetchers }:
let
  root = ../.;
  text = builtins.readFile (root + "/envbuild/__init__.py");
  version = builtins.head (builtins.match ".*__version__ = \"([^\"]+)\".*" text);
  source = builtins.path {
    name = "envbuild-source";
    path = root + "/envbuild";
    filter = path: _type: builtins.match ".*/__pycache__" path == null;
  };
  # what pyproject.toml asks for, but for the wheels below
  python = pkgs.python3.withPackages (packages: [
    packages.click
    packages.isal
    packages.msgspec
    packages.packaging
    packages.requests
    packages.rich
    packages.tomli
    packages.tomli-w
    packages.urllib3
  ]);
  wheels =
    map fetchers.wheel
      (builtins.fromTOML (builtins.readFile (root + "/envbuild/nix/wheels.toml"))).wheels;
in
pkgs.runCommand "envbuild-${version}"
  {
    passthru = { inherit python version wheels; };
    meta = {
      description = "One lock, many sites, one digest: Python environments for shared clusters";
      mainProgram = "envbuild";
    };
  }
  ''
    library=$out/lib/envbuild
    mkdir -p $out/bin $library/bin
    for wheel in ${toString wheels}; do
      ${python}/bin/python3 -m zipfile -e $wheel $library
    done
    # where uv's own module looks for its program
    mv $library/uv-*.data/scripts/uv $library/bin/uv
    chmod 755 $library/bin/uv
    rm -r $library/uv-*.data
    cp -r ${source} $library/envbuild
    chmod -R u+w $library
    ${python}/bin/python3 -m compileall -q --invalidation-mode unchecked-hash $library
    cat > $out/bin/envbuild <<END
    #!${python}/bin/python3 -I
    import sys
    sys.path.insert(0, "$library")
    from envbuild.entry import run
    run()
    END
    chmod 755 $out/bin/envbuild
  ''
