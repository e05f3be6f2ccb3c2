"""kubectl that goes on: what an object or a log says from before something is done until after it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import IO

from .place import Object, Place

WITHIN = 240.0
READY = '{.status.conditions[?(@.type=="Ready")].status}'


class Follower:
    """Its output line by line. It has said its first line when this is made, so it misses nothing."""

    def __init__(self, place: Place, *arguments: str) -> None:
        command = [place.kubectl_program, "--kubeconfig", str(place.kubeconfig), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
        with self._output() as output:
            self._first = output.readline()
        assert self._first, f"kubectl {' '.join(arguments)} said nothing"

    @contextmanager
    def _output(self) -> Iterator[IO[str]]:
        """It ends when the time is over."""
        assert self._process.stdout is not None
        deadline = Timer(WITHIN, self._process.kill)
        deadline.start()
        try:
            yield self._process.stdout
        finally:
            deadline.cancel()

    def until(self, text: str) -> None:
        """Read on to the line that is this text."""
        last = self._first
        with self._output() as output:
            while last.strip() != text:
                before, last = last, output.readline()
                assert last, f"{text!r} did not come, the last was {before!r}"

    def rest(self) -> str:
        """All of it, when it has ended."""
        with self._output() as output:
            return self._first + output.read()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def following(place: Place, *arguments: str) -> Iterator[Follower]:
    follower = Follower(place, *arguments)
    try:
        yield follower
    finally:
        follower.close()


@contextmanager
def unready_meanwhile(place: Place, namespace: str, name: str) -> Iterator[None]:
    """The VM says that it is not ready because of what is done here, however short that is."""
    shown = ("--watch", "-o", f"jsonpath={READY}{{'\\n'}}")
    with following(place, "get", "vm", name, "-n", namespace, *shown) as versions:
        yield
        versions.until("False")


@contextmanager
def plug_pulled_meanwhile(place: Place, pod: Object) -> Iterator[None]:
    """The machine ends by what is done here, and its guest is not asked."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    log = ("logs", "-f", name, "-n", namespace, "-c", "guest-console-log")
    with following(place, *log) as console:
        yield
        said = console.rest()
    assert "hotvirt demo guest: poweroff" not in said, "the guest was shut down"
