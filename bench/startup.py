"""Commands that a person waits for although there is nothing to do.

    python bench/startup.py [SITE ROOT]

With a site and the root of a rehearsal, creating all of the site's environments is timed too: they
must have been created before.
"""

from __future__ import annotations

import sys

import common


def main(arguments: list[str]) -> None:
    """Print each command's seconds, as a whole process."""
    common.absolute("envbuild --help", [*common.ENVBUILD, "--help"], rounds=15, most=0.15)
    check = [*common.ENVBUILD, "lock", "--check"]
    common.absolute("envbuild lock --check, all", check, rounds=15, most=0.3)
    if arguments:
        site, root = arguments
        place = ["--site", site, "--root", root]
        command = [*common.ENVBUILD, "create", *place, "--offline"]
        common.absolute("envbuild create, nothing to do", command, rounds=15, most=0.5)
        command = [*common.ENVBUILD, "status", *place]
        common.absolute("envbuild status", command, rounds=15, most=0.5)


if __name__ == "__main__":
    main(sys.argv[1:])
