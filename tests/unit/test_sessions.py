"""`make test` in several sessions: no test is left out or run twice, no failure is lost, all of them end."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sessions import CHECKOUT, SESSIONS, run_all
from tests.targets.plugin import BARE, WHOLE
from tests.targets.target import wait_until

SPLIT_BY_TARGET = {"tests/conformance", "tests/kubectl"}
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


def targets_of(words: tuple[str, ...]) -> list[str]:
    return [word.removeprefix("--target=") for word in words if word.startswith("--target=")]


def test_every_folder_of_tests_is_in_one_session() -> None:
    named = Counter(word for words in SESSIONS.values() for word in words if not word.startswith("-"))
    folders = {str(path.parent.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests").rglob("test_*.py")}
    assert set(named) == folders
    assert {folder for folder, times in named.items() if times > 1} == SPLIT_BY_TARGET


@pytest.mark.parametrize("folder", sorted(SPLIT_BY_TARGET))
def test_a_folder_in_several_sessions_is_split_by_target(folder: str) -> None:
    targets = [target for words in SESSIONS.values() if folder in words for target in targets_of(words)]
    assert sorted(targets) == sorted([*BARE, *WHOLE])


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
        said, _ = run.communicate(timeout=30)
    assert run.returncode == code
    assert said.count("tidied up") == 2
    assert "tests: three: not run" in said
    assert not places[2].exists()
