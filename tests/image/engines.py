"""Container engines of Debian's packages, on images in layouts.

Each runs as root in namespaces of its own, so that nothing is left behind however a test ends: no
process, no mount, no lock, no cache. What they write is in folders of the test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
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
exec 3<&0
"$@" 3<&- &
server=$!
{ read -r line <&3; kill $server; } &
wait $server
"""
_PACKAGES = {
    "ctr": "containerd",
    "docker": "docker.io",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "mount": "mount",
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
    for name in ("mount", "unshare", *names):
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
    """Return what a server says when it is ready."""
    until = time.monotonic() + _LIMIT
    while True:
        ended = server.poll() is not None
        text = log.read_text()
        found = re.search(ready, text)
        if found is not None:
            return found[0]
        assert not ended and time.monotonic() < until, text
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
        folder: an empty one, with a short path: sockets have no long ones.
        variables: of its environment.
    """
    settings = {
        "hosts": [f"unix://{folder / 'socket'}"],
        "data-root": str(folder / "data"),
        "exec-root": str(folder / "run"),
        "pidfile": str(folder / "pid"),
        "deprecated-key-path": str(folder / "key"),
        # nothing of the machine's network is touched, nor of its control groups but for a while
        "bridge": "none",
        "cgroup-parent": "/",
        "iptables": False,
        "ip-forward": False,
    }
    configuration = folder / "daemon.json"
    configuration.write_text(json.dumps(settings))
    command = ("dockerd", "--config-file", configuration)
    try:
        with serve(*command, log=folder / "log", ready="API listen on", **variables):
            yield Docker(folder)
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)  # gigabytes, maybe


def podman(folder: Path, *arguments: str | Path) -> str:
    """Run podman with its images and containers in a folder, and return what it printed."""
    settings = ("--root", folder / "podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc")
    return run("podman", *settings, "--events-backend", "none", *arguments, home=folder)


def runc(layout: Path, name: str, bundle: Path, results: Path, *commands: Sequence[str]) -> str:
    """Run commands in an image as its user and with a read-only root.

    Args:
        layout: where the image is.
        name: its name there.
        bundle: a folder to unpack it in, with umoci.
        results: a folder that is mounted where the image wants to write.
        commands: each of them a program and its arguments.

    Returns:
        What they printed.
    """
    run("umoci", "unpack", "--image", f"{layout}:{name}", bundle, home=bundle.parent)
    path = bundle / "config.json"
    configuration: dict[str, Any] = json.loads(path.read_bytes())
    configuration["root"]["readonly"] = True
    process = configuration["process"]
    process["terminal"] = False
    os.chown(results, process["user"]["uid"], process["user"]["gid"])
    mounts = {mount["destination"]: mount for mount in configuration["mounts"]}
    assert mounts["/results"]["type"] == "tmpfs"  # root's, as umoci has volumes
    mounts["/results"] |= {"type": "bind", "source": str(results), "options": ["bind", "rw"]}
    printed = ""
    for command in commands:
        process["args"] = command
        path.write_text(json.dumps(configuration))
        container = f"envbuild-{uuid.uuid4().hex}"  # as its control groups are named, too
        state = ("--root", bundle / "state")
        printed += run("runc", *state, "run", "--bundle", bundle, container, home=bundle)
    return printed
