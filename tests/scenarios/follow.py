"""kubectl that goes on: what is said of an object from before something is done until after it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import IO

from .place import Object, Place

WITHIN = 240.0
NO_GRACE = "1"
"""Seconds: of none, the API would not wait for the node."""
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
    """The Pod is ended by what is done here, and its guest gets no time to shut down."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    shown = ("--watch", "-o", "jsonpath={.metadata.deletionGracePeriodSeconds}{'\\n'}")
    with following(place, "get", "pod", name, "-n", namespace, *shown) as versions:
        yield
        versions.until(NO_GRACE)
