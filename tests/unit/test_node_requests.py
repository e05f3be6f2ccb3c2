"""Requests of users, noted in a folder that belongs to a tenant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotvirt.api.kubevirt import HotvirtRequest
from hotvirt.hypervisor.files import MACHINE_FILE
from hotvirt.hypervisor.instant import InstantDriver
from hotvirt.node.handover import read_record
from hotvirt.node.requests import NOTES, carry_out
from hotvirt.plan.machine import machine_for
from tests.unit.test_machine import vmi

RESET = HotvirtRequest(action="Reset", id="one")


async def boot_ids(folder: Path, times: int) -> tuple[list[str], list[str]]:
    """What a request that is carried out so many times answers, and the boot id after each."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    driver = InstantDriver()
    try:
        await driver.begin(descriptor, machine_for(vmi()))
        machine = await driver.connect(descriptor)
        answers, ids = [], []
        for _ in range(times):
            answers.append(await carry_out(machine, descriptor, RESET))
            guest = (await machine.observe()).guest
            assert guest is not None
            ids.append(guest.boot_id)
        machine.close()
    finally:
        os.close(descriptor)
    return answers, ids


async def test_a_reset_is_done_once(tmp_path: Path) -> None:
    answers, ids = await boot_ids(tmp_path, 2)
    assert answers == ["", ""]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("strange", ["pipe", "folder", "link"])
async def test_a_note_that_cannot_be_written_is_said_and_nobody_waits(tmp_path: Path, strange: str) -> None:
    notes = tmp_path / NOTES
    if strange == "pipe":
        os.mkfifo(notes)
    elif strange == "folder":
        notes.mkdir()
    else:
        notes.symlink_to("/nowhere")
    answers, _ = await boot_ids(tmp_path, 1)
    assert answers[0].startswith("it could not be noted down")


@pytest.mark.parametrize("strange", ["folder", "pipe", "deep"])
def test_a_record_that_is_none_is_empty_and_leaves_nothing_open(
    tmp_path: Path, strange: str, open_files: Callable[[], int]
) -> None:
    record = tmp_path / MACHINE_FILE
    if strange == "folder":
        record.mkdir()
    elif strange == "pipe":
        os.mkfifo(record)
    else:
        record.write_text("[" * 500_000)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = open_files()
        assert read_record(descriptor) == {}
        assert open_files() == before
    finally:
        os.close(descriptor)
