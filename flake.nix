{
  description = "One lock, many sites, one digest: Python environments for shared clusters";

  # It brings what runs envbuild. What is in an image comes from the locks, and from nowhere else.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { nixpkgs, ... }: import ./nix { inherit nixpkgs; };
}
