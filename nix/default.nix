# The flake's outputs.
{ nixpkgs }:
let
  root = ../.;
  system = "x86_64-linux";
  pkgs = nixpkgs.legacyPackages.${system};

  mkTool =
    pkgs:
    import ./tool.nix {
      inherit pkgs;
      fetchers = import ./fetchers.nix { inherit pkgs; };
    };
  tool = mkTool pkgs;

  # makes the image of an environment of any project: see image.nix for what it takes
  mkImage =
    {
      pkgs,
      fetchers ? { },
      ...
    }@arguments:
    import ./image.nix
      {
        inherit pkgs;
        tool = mkTool pkgs;
        fetchers = import ./fetchers.nix { inherit pkgs; } // fetchers;
      }
      (
        builtins.removeAttrs arguments [
          "pkgs"
          "fetchers"
        ]
      );

  # all images of a project
  mkImages =
    { project, ... }@arguments:
    import ./images.nix {
      mkImage = one: mkImage (builtins.removeAttrs arguments [ "project" ] // one);
    } project;

  images = mkImages {
    inherit pkgs;
    project = root;
  };

  # a stand-in for nixpkgs does not have it
  nixfmt = if pkgs ? nixfmt then [ pkgs.nixfmt ] else [ ];

  app = name: description: text: {
    type = "app";
    meta = { inherit description; };
    program = "${
      pkgs.writeShellApplication {
        inherit name text;
        runtimeInputs = [ tool ];
      }
    }/bin/${name}";
  };
in
{
  packages.${system} = images // {
    envbuild = tool;
    default = tool;
  };

  apps.${system} = {
    default = {
      type = "app";
      program = "${tool}/bin/envbuild";
      meta = { inherit (tool.meta) description; };
    };
    # whether locks and flake.lock are what is declared, in the folder where it is run
    lock-check = app "lock-check" "Whether locks are what environments declare" ''
      exec envbuild lock --check "$@"
    '';
  };

  devShells.${system}.default = pkgs.mkShellNoCC {
    packages = [
      tool
      pkgs.skopeo
    ]
    ++ nixfmt;
  };

  overlays.default = final: prev: { envbuild = mkTool final; };

  formatter = builtins.listToAttrs (
    map (value: {
      name = system;
      inherit value;
    }) nixfmt
  );

  checks.${system} = import ./checks.nix {
    inherit
      pkgs
      tool
      images
      nixfmt
      ;
  };

  lib = { inherit mkImage mkImages; };
}
