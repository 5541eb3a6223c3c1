"""Nix: artifacts put into its store by hash, and a stand-in for nixpkgs."""
