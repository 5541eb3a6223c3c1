"""Whether a prefix works where it is: its rules, and what they read of its files."""
