# Where artifacts come from: each function takes { file; sha256; … } and returns a store path.
#
# They are fixed-output derivations: what is in the store by that name and hash, as after
# `envbuild nix preload`, is not fetched. No host of a package registry stands here: nixpkgs knows
# the index's (fetchPypi) and Debian's (mirror://debian). For a private index replace them:
# lib.mkImage { fetchers.wheel = one: pkgs.fetchurl { url = "https://…/${one.file}"; inherit (one) sha256; }; }
{ pkgs }:
let
  wheelName = import ./wheel-name.nix;
  sdistName = import ./sdist-name.nix;
  storeName = import ./store-name.nix;
in
{
  wheel =
    { file, sha256, ... }:
    let
      parts = wheelName file;
    in
    pkgs.fetchPypi (
      parts
      // {
        inherit sha256;
        format = "wheel";
        dist = parts.python;
      }
    );

  sdist =
    { file, sha256, ... }:
    pkgs.fetchPypi (sdistName file // { inherit sha256; });

  # security updates lie beside Debian's own archive, and often come into it later
  deb =
    {
      file,
      sha256,
      pool,
      ...
    }:
    let
      plain = builtins.replaceStrings [ "pool/updates/" ] [ "pool/" ] pool;
      own = "mirror://debian/${plain}/${file}";
      security = "mirror://debian/../debian-security/${pool}/${file}";
    in
    pkgs.fetchurl {
      inherit sha256;
      name = storeName file;
      urls =
        if plain == pool then
          [ own ]
        else
          [
            security
            own
          ];
    };

  # python-build-standalone's own releases
  interpreter =
    {
      file,
      sha256,
      build,
      ...
    }:
    pkgs.fetchurl {
      inherit sha256;
      name = storeName file;
      url =
        "https://github.com/astral-sh/python-build-standalone/releases/download/${build}/"
        + builtins.replaceStrings [ "+" ] [ "%2B" ] file;
    };
}
