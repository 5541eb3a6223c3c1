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
  wheelName = import ./wheel-name.nix;
  storeName = import ./store-name.nix;
  copies = import ./copies.nix { inherit pkgs; };
  farm =
    name: fetch: artifacts:
    pkgs.linkFarm name (
      map (one: {
        name = one.file;
        path = fetch one;
      }) artifacts
    );
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
  debHouse = farm "${name}-debs" fetchers.deb debs;
  layers = pkgs.runCommand "${name}-debian-layers" { nativeBuildInputs = [ tool ]; } ''
    envbuild nix layers --pins ${alone "locks/image-base.toml"} --wheelhouse ${debHouse} \
      ${if interpreter == "debian" then "--python" else ""} \
      ${toString (map (one: "--package ${one}") declared.packages)} -o $out
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
    export TERM=dumb
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
      sources = farm "${name}-${package.name}-sources" fetchers.sdist [ package ];
      requires = farm "${name}-build-requirements" fetchers.wheel lock.buildWheels;
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
        ln -s ${sources}/* ${requires}/* wheelhouse/
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
  linked =
    fetch:
    map (one: {
      name = one.file;
      path = fetch one;
    });

  given = map (path: (wheelName (fileName path)).pname) wheels;
  # of a path in the store, without the hash before it
  fileName =
    path:
    let
      base = builtins.unsafeDiscardStringContext (builtins.baseNameOf path);
      inStore = builtins.match "[0-9a-z]{32}-(.*)" base;
    in
    if inStore == null then base else builtins.head inStore;
  dashed = builtins.replaceStrings [ "_" "." ] [ "-" "-" ];
  lacking = builtins.filter (one: !builtins.elem one (map dashed given)) lock.unbuilt;

  image =
    pkgs.runCommand "${name}-image"
      {
        nativeBuildInputs = [ tool ];
        passthru = {
          inherit imageName wheelhouse layers;
          built = builtins.listToAttrs (
            map (package: {
              inherit (package) name;
              value = built package;
            }) lock.pure
          );
          imageTag = lock.tag;
        }
        // copies {
          inherit image imageName environment;
          imageTag = lock.tag;
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
          ${toString (map (path: "--wheel ${wheelhouse}/${fileName path}") wheels)} -o $out
      '';
in
if lacking != [ ] then
  refuse {
    what = "${builtins.concatStringsSep ", " lacking}: built on the target system, not pinned by the lock";
    where = "locks/pylock.${name}.toml";
    mend = "give the wheels: lib.mkImage { wheels = [ ./FILE.whl ]; … }";
  }
else
  image
