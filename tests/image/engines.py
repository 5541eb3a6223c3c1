"""Container engines of Debian's packages, on images in layouts.

Each runs as root in namespaces of its own, so that nothing is left behind however a test ends: no
process, no mount, no lock, no cache. What they write is in folders of the test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import programs

# read when tests are collected: the fixtures take our settings away
_REQUIRE_ALL = os.environ.get("ENVBUILD_REQUIRE_ALL") == "1"

# The folders that engines use wherever they are told to work, empty; and init, which they need.
_ISOLATED = """\
for folder in /run /dev/shm /var/lib; do mount -t tmpfs tmpfs "$folder" || exit; done
mkdir /var/lib/containers
"""
# Those who start it hold its standard input: when they close it, or are gone, all of it ends.
_SERVING = """\
"$@" &
read -r line
kill $!
wait $!
"""
_PACKAGES = {
    "ctr": "containerd",
    "docker": "docker.io",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "podman": "podman",
    "runc": "runc",
    "skopeo": "skopeo",
    "umoci": "umoci",
    "unpigz": "pigz",
    "unshare": "util-linux",
}
# seconds after which something has gone wrong
_LIMIT = 600


def need(*names: str) -> None:
    """Hold the machine to what engines need: these programs, and root."""
    for name in ("unshare", *names):
        programs.require(name, _PACKAGES[name])
    if os.geteuid() != 0:
        reason = "container engines need root"
        if _REQUIRE_ALL:
            pytest.fail(f"{reason}, and ENVBUILD_REQUIRE_ALL=1 asks for them", pytrace=False)
        pytest.skip(reason)


def run(*command: str | Path, home: Path, fails: bool = False) -> str:
    """Run a program in namespaces of its own and return what it printed.

    Args:
        command: the program and its arguments.
        home: a folder for what it wants to keep.
        fails: whether it must fail; then what it says of that is returned.
    """
    done = subprocess.run(
        _isolated('"$@"\n', command),
        env=_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    assert (done.returncode != 0) == fails, (command, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


@contextmanager
def serve(*command: str | Path, log: Path, ready: str, **variables: str) -> Iterator[str]:
    """Run a server in namespaces of its own, and yield what it said when it was ready.

    Args:
        command: the program and its arguments.
        log: a file for what it prints.
        ready: a regular expression for what it prints then.
        variables: of its environment.
    """
    with (
        log.open("wb") as file,
        subprocess.Popen(
            _isolated(_SERVING, command),
            env=_environment(log.parent) | variables,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
        ) as server,
    ):
        assert server.stdin is not None
        try:
            yield _wait(server, log, ready)
        finally:
            server.stdin.close()


def _isolated(script: str, command: Sequence[str | Path]) -> list[str | Path]:
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*unshare, "sh", "-c", _ISOLATED + script, "-", *command]


def _environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"}


def _wait(server: subprocess.Popen[bytes], log: Path, ready: str) -> str:
    """Return what a server says when it is ready, however long that takes it."""
    while True:
        ended = server.poll() is not None
        text = log.read_text()
        found = re.search(ready, text)
        if found is not None:
            return found[0]
        assert not ended, text
        time.sleep(0.02)


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run Debian's docker-registry on a free loopback port, and yield its host and port."""
    folder.mkdir()
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    configuration = folder / "registry.json"
    configuration.write_text(json.dumps(settings))
    command = ("docker-registry", "serve", configuration)
    ready = r"(?<=listening on )127\.0\.0\.1:[0-9]+"
    with serve(*command, log=folder / "log", ready=ready) as address:
        yield address


class Docker:
    """A Docker daemon, and the containerd that it has started.

    Args:
        folder: what both of them work in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def docker(self, *arguments: str) -> str:
        """Run the client of the daemon and return what it printed."""
        host = f"unix://{self._folder / 'socket'}"
        return run("docker", "--host", host, *arguments, home=self._folder)

    def ctr(self, *arguments: str | Path, fails: bool = False) -> str:
        """Run the client of containerd, as `run` does."""
        socket = self._folder / "run/containerd/containerd.sock"
        command = ("ctr", "--address", socket, "--namespace", "tests", *arguments)
        return run(*command, home=self._folder, fails=fails)


@contextmanager
def docker(folder: Path, **variables: str) -> Iterator[Docker]:
    """Run a Docker daemon.

    Args:
        folder: a new one, with a short path: sockets have no long ones.
        variables: of its environment.
    """
    folder.mkdir()
    command: list[str | Path] = ["dockerd", "--host", f"unix://{folder / 'socket'}"]
    for option, name in (
        ("data-root", "data"),
        ("exec-root", "run"),
        ("pidfile", "pid"),
        ("deprecated-key-path", "key"),
    ):
        command += [f"--{option}", folder / name]
    # no network: nothing of the machine's is touched
    command += ["--iptables=false", "--ip6tables=false", "--bridge=none"]
    with serve(*command, log=folder / "log", ready="API listen on", **variables):
        yield Docker(folder)


def podman(folder: Path, *arguments: str | Path) -> str:
    """Run podman with images and containers in a folder, and return what it printed."""
    settings = ("--root", folder / "root", "--runroot", folder / "run", "--tmpdir", folder / "tmp")
    engine = ("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none")
    return run("podman", *settings, *engine, *arguments, home=folder)


def unpack(layout: Path, name: str, bundle: Path) -> dict[str, Any]:
    """Unpack an image with umoci and return the configuration that it made for a runtime."""
    run("umoci", "unpack", "--image", f"{layout}:{name}", bundle, home=bundle.parent)
    configuration: dict[str, Any] = json.loads((bundle / "config.json").read_bytes())
    return configuration


def runc(bundle: Path, configuration: Mapping[str, Any], *command: str) -> str:
    """Run a command in an unpacked image whose root is read-only, and return what it printed.

    Args:
        bundle: the image, unpacked by `unpack`.
        configuration: for the runtime, which is left as it is but for the command.
        command: the program and its arguments.
    """
    process = {**configuration["process"], "args": command, "terminal": False}
    root = {**configuration["root"], "readonly": True}
    changed = {**configuration, "process": process, "root": root}
    (bundle / "config.json").write_text(json.dumps(changed))
    state = ("--root", bundle / "state")
    name = f"envbuild-{uuid.uuid4().hex}"  # the machine's control groups are named so, too
    return run("runc", *state, "run", "--bundle", bundle, name, home=bundle)
