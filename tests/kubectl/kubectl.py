"""Running kubectl as a person would: one kubeconfig, one home, one namespace."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST = (1, 27)
WITHIN = 150.0


@dataclass(frozen=True)
class Kubectl:
    binary: Path
    kubeconfig: Path
    home: Path
    namespace: str

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        return kept | {"HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)} | more

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(self.binary), "--namespace", self.namespace, *arguments]

    def run(
        self, *arguments: str, stdin: Any = None, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`stdin` is an object, given to kubectl as JSON."""
        return subprocess.run(
            self._command(arguments),
            input=None if stdin is None else json.dumps(stdin),
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=self._environment(environment or {}),
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )

    def __call__(self, *arguments: str, stdin: Any = None, **environment: str) -> str:
        """Run a command that must work; returns what it printed."""
        done = self.run(*arguments, stdin=stdin, environment=environment)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *arguments: str, stdin: Any = None) -> str:
        """Run a command that must fail; returns what it complained."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} should fail:\n{done.stdout}"
        return done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """A printed table as one dict a row."""
        head, *lines = self(*arguments).splitlines()
        starts = [match.start() for match in re.finditer(r"(?:(?<=^)|(?<=  ))\S", head)]
        spans = list(zip(starts, [*starts[1:], None], strict=True))
        names = [head[a:b].strip() for a, b in spans]
        return [dict(zip(names, (line[a:b].strip() for a, b in spans), strict=True)) for line in lines]

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        """A command that goes on until it is stopped, or until it is done."""
        process = subprocess.Popen(
            self._command(arguments),
            env=self._environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Running(process)
        finally:
            process.kill()
            process.wait()


class Running:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str:
        line = self._lines.get(timeout=WITHIN)
        assert line is not None, "kubectl ended while a line was expected"
        return line

    def line_with(self, *words: str) -> str:
        """Read on to the line that has all the words."""
        while True:
            line = self.line()
            if all(word in line for word in words):
                return line

    def done(self) -> str:
        """Wait for the end, which must be a success; returns what was printed."""
        printed = []
        while (line := self._lines.get(timeout=WITHIN)) is not None:
            printed.append(line)
        code = self._process.wait(WITHIN)
        assert code == 0, "".join(printed)
        return "".join(printed)


def version(binary: Path) -> tuple[int, int]:
    """What `kubectl version` says of itself; the number of a dispatcher is that of its default."""
    command = [str(binary), "version", "--client", "--output=json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
    if answer.returncode:
        return (0, 0)
    client = json.loads(answer.stdout)["clientVersion"]
    return int(client["major"]), int(client["minor"].rstrip("+"))


def on_path() -> Path | None:
    """The kubectl that the user has, when it is new enough to be supported."""
    found = shutil.which("kubectl")
    return Path(found) if found and version(Path(found)) >= OLDEST else None
