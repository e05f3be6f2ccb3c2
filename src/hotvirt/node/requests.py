"""What users ask of a running machine through its VMI's status: Pause, Unpause, SoftReboot, Reset.

They are carried out in order and then removed from the list. Pausing twice is pausing; rebooting twice is
not: a reboot is noted in the run folder before it is done, so that an agent that dies in between does not
do it again.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from hotvirt.api.kubevirt import HotvirtRequest
from hotvirt.hypervisor.driver import DriverError, RunningMachine

NOTES: Final = "requests.done"
MAX_NOTES: Final = 64 * 1024
ONCE: Final = frozenset({"SoftReboot", "Reset"})


async def carry_out(machine: RunningMachine, folder: int, request: HotvirtRequest) -> str:
    """Do it; the answer is an empty text, or why it could not be done."""
    if request.action in ONCE:
        if request.id in _noted(folder):
            return ""
        try:
            _note(folder, request.id)
        except OSError as error:
            return f"it could not be noted down before it was done: {error.strerror}"
    try:
        if request.action == "Pause":
            await machine.pause()
        elif request.action == "Unpause":
            await machine.resume()
        elif request.action == "SoftReboot":
            await machine.soft_reboot()
        elif request.action == "Reset":
            await machine.reset()
        else:
            return f"the action {request.action!r} is not known"
    except DriverError as error:
        return str(error)
    return ""


def _noted(folder: int) -> set[str]:
    try:
        file = os.open(NOTES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return set()
    try:
        text = os.read(file, MAX_NOTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
    return set(text.decode(errors="replace").split())


def _note(folder: int, request: str) -> None:
    # The folder is the tenant's: a pipe of that name must not make us wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(NOTES, flags, 0o600, dir_fd=folder)
    with os.fdopen(file, "w") as stream:
        stream.write(request + "\n")
