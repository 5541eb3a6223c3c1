# An environment's image: the very command `envbuild image`, run in a sandbox.
#
# Its inputs are the environment's own files, its lock, its pins and what they name: nothing else of
# the project, so that a change elsewhere builds nothing again. What takes long and changes rarely,
# Debian's packages compressed anew, is a derivation of its own.
{
  pkgs,
  tool,
  fetchers,
}:
let
  refuse = import ./refuse.nix;
  readLock = import ./lock.nix;
  normalized = import ./normalized.nix;
  wheelName = import ./wheel-name.nix;
  storeName = import ./store-name.nix;
  copies = import ./copies.nix { inherit pkgs; };
  # artifacts under their own file names
  linked =
    fetch:
    map (one: {
      name = one.file;
      path = fetch one;
    });
  # Nix gives builds a terminal, whose text becomes a log; and says how many cores they may use
  begin = ''
    export TERM=dumb
    jobs=
    if [ "''${NIX_BUILD_CORES:-0}" -gt 0 ]; then
      jobs="-j $NIX_BUILD_CORES"
    fi
  '';
in
{
  # the folder with envs/ and locks/
  project,
  # the environment
  environment,
  # "managed", "debian" or "none"
  interpreter ? "managed",
  # wheels of the packages that are built from source on the target system
  wheels ? [ ],
  # what the image is called
  imageName ? environment,
}:
let
  name = environment;
  declared = (import ./environments.nix project).environment name;
  pins = import ./pins.nix project;
  file = project + "/locks/pylock.${name}.toml";
  lock = readLock { inherit name file; };

  debs = pins.debs {
    python = interpreter == "debian";
    inherit (declared) packages;
  };
  # no environment's name is in it: those that ask for the same packages share it
  layers =
    pkgs.runCommand "debian-layers"
      {
        nativeBuildInputs = [ tool ];
        inherit (declared) packages;
      }
      ''
        ${begin}
        envbuild nix layers --pins ${alone "locks/image-base.toml"} \
          --wheelhouse ${pkgs.linkFarm "debs" (linked fetchers.deb debs)} \
          ${if interpreter == "debian" then "--python" else ""} \
          $(for package in $packages; do echo --package $package; done) $jobs -o $out
      '';

  # a file by itself: what else is in the project does not matter to what is made of it
  alone =
    path:
    builtins.path {
      name = builtins.baseNameOf path;
      path = project + "/${path}";
    };
  # the project, as far as it matters here
  own = ''
    ${begin}
    mkdir -p project/envs project/locks project/sites
    ${builtins.concatStringsSep "\n" (
      map (file: "cp ${alone "envs/${file}.toml"} project/envs/${file}.toml") declared.files
    )}
    cp ${alone "locks/pylock.${name}.toml"} project/locks/pylock.${name}.toml
  '';

  # the wheel of an sdist of pure Python, whose hash the lock holds
  built =
    package:
    let
      needed = linked fetchers.sdist [ package ] ++ linked fetchers.wheel lock.buildWheels;
    in
    pkgs.runCommand (storeName package.wheel.file)
      {
        nativeBuildInputs = [ tool ];
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = package.wheel.sha256;
      }
      ''
        ${own}
        mkdir wheelhouse
        ln -s ${pkgs.linkFarm "${package.name}-and-what-builds-it" needed}/* wheelhouse/
        envbuild --project project wheel ${package.name} --env ${name} --offline \
          --wheelhouse wheelhouse -o built
        mv built/* $out
      '';

  archives = if interpreter == "managed" then [ (pins.interpreter declared.python) ] else [ ];
  wheelhouse = pkgs.linkFarm "${name}-wheelhouse" (
    builtins.concatLists [
      (linked fetchers.wheel lock.wheels)
      (map (one: {
        name = one.wheel.file;
        path = built one;
      }) lock.pure)
      (linked fetchers.deb debs)
      (linked fetchers.interpreter archives)
      (map (path: {
        name = fileName path;
        inherit path;
      }) wheels)
    ]
  );
  given = map (path: normalized (wheelName (fileName path)).pname) wheels;
  # of a path in the store, without the hash before it
  fileName =
    path:
    let
      base = builtins.unsafeDiscardStringContext (builtins.baseNameOf path);
      inStore = builtins.match "[0-9a-z]{32}-(.*)" base;
    in
    if inStore == null then base else builtins.head inStore;
  lacking = builtins.filter (one: !builtins.elem one (given)) lock.unbuilt;

  names = {
    inherit imageName;
    imageTag = lock.tag;
  };
  image =
    pkgs.runCommand "${name}-image"
      {
        nativeBuildInputs = [ tool ];
        passthru =
          names
          // copies (names // { inherit image environment; })
          // {
            inherit wheelhouse layers;
            built = builtins.listToAttrs (
              map (package: {
                inherit (package) name;
                value = built package;
              }) lock.pure
            );
          };
        meta.description = "Container image of ${name}: an OCI layout";
      }
      ''
        ${own}
        ${
          if archives == [ ] then
            ""
          else
            "cp ${alone "locks/interpreters.toml"} project/locks/interpreters.toml"
        }
        cp ${alone "locks/image-base.toml"} project/locks/image-base.toml
        envbuild --project project image ${name} --interpreter ${interpreter} --offline --no-cache \
          --layers ${layers} --wheelhouse ${wheelhouse} \
          ${toString (map (path: "--wheel ${wheelhouse}/${fileName path}") wheels)} $jobs -o $out
      '';
in
builtins.seq declared (
  if
    !builtins.elem interpreter [
      "managed"
      "debian"
      "none"
    ]
  then
    refuse {
      what = "mkImage: no such interpreter";
      expected = "managed, debian or none";
      found = interpreter;
    }
  else if builtins.match "[a-z0-9]+([._/-]+[a-z0-9]+)*" imageName == null then
    refuse {
      what = "mkImage: not the name of an image";
      expected = "lower-case letters and digits, joined by '.', '_', '-' or '/'";
      found = imageName;
    }
  else if lacking != [ ] then
    refuse {
      what = "${builtins.concatStringsSep ", " lacking}: built on the target system, not pinned by the lock";
      where = "locks/pylock.${name}.toml";
      mend = "give the wheels: lib.mkImage { wheels = [ ./FILE.whl ]; … }";
    }
  else
    image
)
