"""Verifying a prefix, against hashing the same files with Python's hashlib.

    python bench/verify.py SITE ROOT WHEELHOUSE [ENV [ROUNDS]]

The prefix must be there: `envbuild create ENV --site SITE --root ROOT --wheelhouse WHEELHOUSE`.
The peer walks the prefix and hashes every file, byte code too, in as many processes as there are
cores. Both are whole processes. A quick verification is timed too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import common

from envbuild.catalog.project import Project

# The largest files first, each process taking the next: as good as hashing gets
PEER = """
import hashlib, multiprocessing, os, sys
files = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[1]) for name in names]
files = [path for path in files if not os.path.islink(path)]
files.sort(key=os.path.getsize, reverse=True)
def digest(path):
    with open(path, "rb") as file:
        return path, hashlib.file_digest(file, "sha256").hexdigest()
with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
    digests = dict(pool.imap_unordered(digest, files, chunksize=16))
print(len(digests))
"""


def main(site: str, root: str, wheelhouse: str, name: str, rounds: int) -> None:
    """Print the ratio, and the seconds of a quick verification."""
    project = Project(common.PROJECT)
    prefix = project.layout(site, root=Path(root)).prefix(name)
    verify = [*common.ENVBUILD, "verify", name, "--site", site, "--root", root]
    full = [*verify, "--full", "--wheelhouse", wheelhouse]
    common.compare(
        f"verify --full {name}, {len(os.sched_getaffinity(0))} processes",
        lambda: common.run(full),
        lambda: common.run([sys.executable, "-c", PEER, prefix]),
        rounds=rounds,
        most=1.3,
    )
    common.absolute(f"verify {name}, a quick look", verify, rounds=9, most=0.5)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        # `make bench` runs every script: this one needs a prefix that somebody names
        print("verify: python bench/verify.py SITE ROOT WHEELHOUSE [ENV [ROUNDS]]")
    else:
        its_site, its_root, its_wheelhouse, *more = sys.argv[1:]
        environment = more[0] if more else "gpu"
        main(its_site, its_root, its_wheelhouse, environment, int((more[1:] or ["5"])[0]))
