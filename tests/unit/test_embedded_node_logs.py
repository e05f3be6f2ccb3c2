"""Reading a container's log: tails, times, limits, rotation, and following without polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotvirt.embedded.node.inotify import Inotify
from hotvirt.embedded.node.logs import LogOptions, read_log


class Container:
    """A log that is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inotify = Inotify()
        self.has_ended = True
        self._listeners: list[Callable[[], None]] = []

    def write(self, *records: str, name: str = "0.log") -> None:
        with (self.folder / name).open("a") as file:
            file.writelines(f"{record}\n" for record in records)

    def end(self) -> None:
        self.has_ended = True
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def stream(self, options: LogOptions) -> AsyncIterator[bytes]:
        return read_log(self.folder, options, self.inotify, lambda: self.has_ended, self.on_change)

    async def read(self, **options: object) -> bytes:
        chosen = LogOptions.of(SimpleNamespace(**options))
        return b"".join([chunk async for chunk in self.stream(chosen)])


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    made = Container(tmp_path)
    yield made
    made.inotify.close()


def line(second: int, text: str, tag: str = "F", stream: str = "stdout") -> str:
    return f"2026-01-01T00:00:{second:02d}.000000000Z {stream} {tag} {text}"


async def test_lines_come_as_they_were_printed(container: Container) -> None:
    container.write(line(1, "one"), line(2, "  two "), line(3, ""))
    assert await container.read() == b"one\n  two \n\n"


async def test_parts_are_put_together(container: Container) -> None:
    container.write(line(1, "lo", "P"), line(2, "gin: ", "P"), line(3, "root"))
    assert await container.read() == b"login: root\n"
    assert await container.read(timestamps=True) == b"2026-01-01T00:00:01.000000000Z login: root\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(0, b""), (1, b"c3\n"), (2, b"b1b2\nc3\n"), (3, b"a\nb1b2\nc3\n"), (9, b"a\nb1b2\nc3\n")],
)
async def test_a_tail_has_whole_lines(container: Container, lines: int, expected: bytes) -> None:
    container.write(line(1, "a"), line(2, "b1", "P"), line(3, "b2"), line(4, "c3"))
    assert await container.read(tail_lines=lines) == expected


async def test_a_tail_counts_the_line_that_is_not_finished(container: Container) -> None:
    container.write(line(1, "a"), line(2, "prompt> ", "P"))
    assert await container.read(tail_lines=1) == b"prompt> "


async def test_since_and_limit(container: Container) -> None:
    container.write(line(1, "one"), line(2, "two"), line(3, "three"))
    assert await container.read(since_time="2026-01-01T00:00:02Z") == b"two\nthree\n"
    assert await container.read(limit_bytes=5) == b"one\nt"


async def test_one_stream_only(container: Container) -> None:
    container.write(line(1, "out"), line(2, "err", stream="stderr"))
    assert await container.read(stream="Stderr") == b"err\n"


async def test_the_older_file_comes_first(container: Container) -> None:
    container.write(line(1, "old"), name="0.log.1")
    container.write(line(2, "new"))
    assert await container.read() == b"old\nnew\n"


async def test_nothing_printed_is_an_empty_log(container: Container) -> None:
    assert await container.read() == b""


async def test_following_ends_with_the_container(container: Container) -> None:
    container.has_ended = False
    container.write(line(1, "one"))
    stream = container.stream(LogOptions(follow=True))
    assert await anext(stream) == b"one\n"
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    container.write(line(2, "two"))
    assert await asyncio.wait_for(following, 60) == b"two\n"
    following = asyncio.ensure_future(anext(stream, b"the end"))
    await asyncio.sleep(0)
    container.write(line(3, "last"))
    container.end()
    assert await asyncio.wait_for(following, 60) == b"last\n"
    assert await asyncio.wait_for(anext(stream, b"the end"), 60) == b"the end"


async def test_following_survives_a_rotation(container: Container) -> None:
    container.has_ended = False
    container.write(line(1, "one"))
    stream = container.stream(LogOptions(follow=True, tail_lines=1))
    assert await anext(stream) == b"one\n"
    container.write(line(2, "two"))
    (container.folder / "0.log").replace(container.folder / "0.log.1")
    container.write(line(3, "three"))
    read = b""
    while read != b"two\nthree\n":
        read += await asyncio.wait_for(anext(stream), 60)
    container.end()
    assert await asyncio.wait_for(anext(stream, b"the end"), 60) == b"the end"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (LogOptions(previous=True), "never restarted"),
        (LogOptions(limit_bytes=0), "limitBytes must be at least 1"),
        (LogOptions(tail_lines=-1), "tailLines must be at least 0"),
        (LogOptions(since_seconds=1, since_time="2026-01-01T00:00:00Z"), "Only one of"),
        (LogOptions(stream="Both"), "stream must be"),
    ],
)
def test_options_that_make_no_sense(options: LogOptions, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        options.check()
