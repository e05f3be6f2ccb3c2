"""`make demo` as a newcomer runs it, and as one who loses patience."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(REPOSITORY / "demo/run.py")]


def processes_that_mention(folder: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # ended while we looked
            continue
        if folder in command and int(process.name) != os.getpid():
            found.append(command)
    return found


def state_folder(output: str) -> str:
    found = re.search(r"state in (\S+)", output)
    assert found, output
    return found[1]


@pytest.mark.timeout(720)
def test_the_demo_shows_what_the_guest_saw_and_leaves_nothing() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"vCPUs online *│ 1 *│ 2 ", done.stdout), done.stdout
    boot_id = re.search(r"boot id *│ (\S+) *│ (\S+)", done.stdout)
    assert boot_id
    assert boot_id[1] == boot_id[2]
    assert not Path(state_folder(done.stdout)).exists()
    assert processes_that_mention(state_folder(done.stdout)) == []


@pytest.mark.timeout(420)
def test_the_demo_interrupted_leaves_nothing() -> None:
    # What runs in the background of a shell inherits that ctrl-c is ignored; at a terminal it is not.
    command = ["env", "--default-signal=INT", *DEMO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout
        said = ""
        for line in demo.stdout:
            said += line
            if "Scheduled" in line:
                demo.send_signal(signal.SIGINT)
                break
        rest, _ = demo.communicate(timeout=300)
    assert demo.returncode == 130, said + rest
    assert "everything is stopped" in rest
    assert not Path(state_folder(said)).exists()
    assert processes_that_mention(state_folder(said)) == []
