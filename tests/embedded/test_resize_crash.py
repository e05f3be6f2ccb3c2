"""Controllers or the node agent killed in the middle of a resize of a real guest, at places chosen by a seed:
the end is that of the edit, in the same boot. The whole matrix is in `tests/faults/test_resize_crash.py`.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from hotvirt.api.resources import VMIS, VMS
from tests.faults.machines import machines
from tests.faults.resizing import boot_id, edit, machine, rests
from tests.kube import condition

NAME = "mortal"
SEED = 3
KILLS = int(os.environ.get("HOTVIRT_SOAK", "0")) // 10 or 2
LATEST = {"controllers": 10, "agent": 6}
BOOT, SLOW = 240.0, 300.0


@pytest.mark.timeout(1800 + 60 * KILLS)
async def test_killed_at_some_places(demo_disk: Path):
    chance = random.Random(SEED)
    limits = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "8"}}
    wanted = machine(NAME, 1, resources=limits)
    wanted["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        async with machines(Path(folder), {"cpu": "32", "memory": "64Gi"}, disk=demo_disk) as world:
            cluster = world.cluster
            async with world.alive():
                await cluster.create(VMS, wanted)
                booted = await cluster.until(
                    VMIS,
                    NAME,
                    lambda vmi: (condition(vmi, "AgentConnected") or {}).get("status") == "True",
                    BOOT,
                )
            for _ in range(KILLS):
                for victim, latest in LATEST.items():
                    number = chance.randint(1, latest)
                    async with world.alive(victim, dies_after=number) as life:
                        for sockets, guest in ((3, "2Gi"), (1, "1Gi")):
                            await edit(cluster, NAME, sockets, guest)
                            vmi = await rests(cluster, NAME, sockets, guest, SLOW)
                            assert boot_id(vmi) == boot_id(booted), (victim, number)
                    assert life is not None
                    killed += life.was_killed
    assert killed >= KILLS
