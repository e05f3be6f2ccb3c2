"""`make test` in several sessions: no test is left out or run twice, no failure is lost, all of them end."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions import CHECKOUT, SESSIONS, Session, arguments, run_all
from tests.targets.plugin import BARE, WHOLE
from tests.targets.target import wait_until

SPLIT_BY_TARGET = ("tests/conformance/", "tests/kubectl/")
SAYS = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"
WAITS = """
import signal, sys
from pathlib import Path
try:
    Path(sys.argv[1]).touch()
    signal.pause()
except KeyboardInterrupt:
    print("tidied up", flush=True)
    sys.exit(2)
"""
RUNS = """
import asyncio, json, sys
from tests.sessions import run_all
sys.exit(asyncio.run(run_all(json.loads(sys.argv[1]), sys.stdout.buffer, at_once=2)))
"""


def says(text: str, code: int) -> list[str]:
    return [sys.executable, "-c", SAYS, text, str(code)]


def files_of(words: list[str]) -> list[str]:
    """The test files that pytest finds with these arguments."""
    ignored = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    places = [CHECKOUT / word for word in words if not word.startswith("--")]
    found = [file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))]
    return [name for file in found if (name := str(file.relative_to(CHECKOUT))) not in ignored]


def targets_of(words: list[str]) -> list[str]:
    asked = [word.removeprefix("--target=") for word in words if word.startswith("--target=")]
    return asked or [*BARE, *WHOLE]


def test_every_file_runs_in_one_session_or_is_split_by_target() -> None:
    asked: dict[str, list[str]] = {}
    for name in SESSIONS:
        words = arguments(name)
        for file in files_of(words):
            asked.setdefault(file, []).extend(
                targets_of(words) if file.startswith(SPLIT_BY_TARGET) else ["whatever it asks for"]
            )
    assert set(asked) == {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests").rglob("test_*.py")}
    for file, targets in asked.items():
        every = [*BARE, *WHOLE] if file.startswith(SPLIT_BY_TARGET) else ["whatever it asks for"]
        assert sorted(targets) == sorted(every), file


def test_who_asks_for_a_target_elsewhere_is_not_cut_by_a_session() -> None:
    """`--target` also counts for tests outside of the folders that are split by it."""
    for name in SESSIONS:
        words = arguments(name)
        if len(targets_of(words)) == len([*BARE, *WHOLE]):
            continue
        for file in files_of(words):
            if not file.startswith(SPLIT_BY_TARGET):
                assert not re.search(r"\btarget: Target\b", (CHECKOUT / file).read_text()), file


async def test_the_output_is_that_of_one_after_another() -> None:
    screen = io.BytesIO()
    assert await run_all({"one": says("first", 0), "two": says("second", 0)}, screen) == 0
    words = screen.getvalue().decode()
    order = ["tests: one\n", "first", "tests: two\n", "second", "tests: one: passed", "tests: two: passed"]
    places = [words.index(word) for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize("codes", [(1, 0, 0), (0, 0, 1), (0, 5, 0)])
async def test_one_that_fails_fails_all(codes: tuple[int, ...]) -> None:
    screen = io.BytesIO()
    commands = {f"number-{number}": says(f"it ended with {code}", code) for number, code in enumerate(codes)}
    assert await run_all(commands, screen, at_once=2) == 1
    words = screen.getvalue().decode()
    for number, code in enumerate(codes):
        assert f"it ended with {code}" in words
        outcome = f"FAILED (pytest: {code})" if code else "passed"
        assert f"tests: number-{number}: {outcome}" in words


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "SIGTERM"]
)
def test_a_signal_ends_every_session_in_good_order(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The third has not started by then, and never does."""
    places = [tmp_path / name for name in ("one", "two", "three")]
    commands = {place.name: [sys.executable, "-c", WAITS, str(place)] for place in places}
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, json.dumps(commands)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as run:
        wait_until(lambda: all(place.exists() for place in places[:2]), "two sessions to run")
        run.send_signal(number)
        said, _ = run.communicate(timeout=120)
    assert run.returncode == code
    assert said.count("tidied up") == 2
    assert "tests: three: not run" in said
    assert said.count("\ntests: two\n") == 1
    assert "\ntests: three\n" not in said, "no heading without anything below"
    assert not places[2].exists()


async def test_a_session_that_is_just_being_started_hears_of_the_signal_too() -> None:
    session = Session("late", [sys.executable, "-c", "import signal; signal.pause()"])
    session.interrupt()
    async with asyncio.timeout(60):
        await session.run()
    assert session.code
