"""``python -m envbuild``."""

from envbuild.cli.main import run

if __name__ == "__main__":
    run()
