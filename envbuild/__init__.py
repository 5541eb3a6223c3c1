"""envbuild: one lock, many sites, one digest."""

__version__ = "0.1.0"
