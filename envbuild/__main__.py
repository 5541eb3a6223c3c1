"""``python -m envbuild``."""

from envbuild.entry import run

if __name__ == "__main__":
    run()
