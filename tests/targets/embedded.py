"""The embedded API: `hotvirt up` in a state folder that is thrown away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .target import Target

HOTVIRT = Path(sys.executable).parent / "hotvirt"
START_WITHIN = 120


def start(folder: Path) -> Target:
    state = folder / "state"
    up = run("up", "--detach", "--state-dir", str(state), "--port", "0")
    if up.returncode:
        raise RuntimeError(f"hotvirt up failed:\n{up.stdout}{up.stderr}")

    def stop() -> None:
        down = run("down", "--stop-vms", "--state-dir", str(state))
        if down.returncode:
            raise RuntimeError(f"hotvirt down failed:\n{down.stdout}{down.stderr}")

    return Target("embedded", state / "kubeconfig", stop=stop)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HOTVIRT), *arguments], capture_output=True, text=True, timeout=START_WITHIN)
