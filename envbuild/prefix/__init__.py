"""Prefixes: environments built at their final path on a site."""
