"""The locks of a site: one an environment, held while its prefix is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.catalog.site import Layout
from envbuild.exclusion import exclusive
from envbuild.owner import Owner
from envbuild.prefix import journal
from envbuild.prefix.usage import Patience


def path(layout: Layout, name: str) -> Path:
    """Return the lock of an environment, or of whatever else at the site has a name of its own."""
    return layout.bookkeeping / "owners" / f"{name}.lock"


@contextmanager
def locked(
    layout: Layout, name: str, me: Owner, patience: Patience, say: Callable[[str], None]
) -> Iterator[None]:
    """Hold an environment's lock while the block runs, what was interrupted being put right first.

    Args:
        layout: the site.
        name: the environment.
        me: who takes it.
        patience: whether and how long to wait for another holder.
        say: is told who is waited for, and what was put right.

    Raises:
        PreflightError: another process holds it.
        OSError: what was interrupted cannot be put right; it can be tried again.
    """
    lock = path(layout, name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock, me, wait=patience.wait, say=say):
        recovered = journal.recover(layout.bookkeeping, name)
        if recovered is not None:
            say(f"{name}: an earlier run was interrupted: {recovered}")
        yield
