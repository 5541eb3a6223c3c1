"""Locks: what they say, how they are made, and how they drift."""
