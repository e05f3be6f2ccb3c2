"""Controllers or the node agent killed after any single thing that they do in a resize, a write to the API
or a command to the hypervisor: the end is that of a run without faults, in the same boot.

The path: one machine that runs gets more vCPUs and memory in one edit, then less of both.
"""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api.resources import PODS, VMIS, VMS
from tests.faults.machines import Machines, each_of, machines
from tests.faults.resizing import boot, boot_id, edit, machine, rests
from tests.faults.test_controller_crash import lasting
from tests.kube import Object, condition

NAME = "one"
# What each does on that path, at the least.
DEEDS = {
    "controllers": {
        *each_of(["patch pods/resize"] * 2),
        *each_of(["patch virtualmachineinstances/"] * 2),
        *each_of(["patch virtualmachineinstances/status"] * 4),
        *each_of(["patch virtualmachines/status"] * 2),
    },
    "agent": {
        *each_of(["command requested"] * 2),
        *each_of(["command plugged", "command plugged online"]),
        *each_of(["command online"] * 2),
        *each_of(["patch virtualmachineinstances/status"] * 2),
    },
}
LIMITED = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "8"}}


async def resize(world: Machines) -> list[Object]:
    """There and back; what stood in the API at both ends."""
    found = []
    for sockets, guest in ((4, "3Gi"), (1, "1Gi")):
        await edit(world.cluster, NAME, sockets, guest)
        vmi = await rests(world.cluster, NAME, sockets, guest)
        found.append(await state(world, vmi))
    return found


async def state(world: Machines, vmi: Object) -> Object:
    cluster = world.cluster
    vm = await cluster.until(
        VMS, NAME, lambda each: each["status"]["observedGeneration"] == each["metadata"]["generation"]
    )
    (pod,) = (await cluster.admin.list(PODS, cluster.namespace)).items
    assert condition(vm, "RestartRequired") is None
    return {
        "boot": boot_id(vmi),
        "vmi": without_counts(lasting(vmi, NAME)),
        "pod": lasting(pod["spec"]["containers"], NAME),
    }


def without_counts(vmi: Any) -> Any:
    """Generations go on from run to run: all are on one machine."""
    vmi["status"]["hotvirt"].pop("settledGeneration")
    vmi["metadata"].pop("annotations", None)
    return vmi


@pytest.mark.parametrize("victim", ["controllers", "agent"])
@pytest.mark.timeout(900)
async def test_killed_after_every_write_and_every_command(in_memory, victim):
    async with machines(in_memory) as world:
        async with world.alive():
            await boot(world.cluster, machine(NAME, 1, resources=LIMITED))
        # The first deeds of a life are those of a start: what a resize does comes after them.
        async with world.alive(victim) as unharmed:
            expected = await resize(world)
        assert unharmed is not None
        count = len(unharmed.writes)
        assert any("resize" in each or each.startswith("command") for each in unharmed.writes)
        killed_after = set()
        for deed in each_of(unharmed.writes):
            async with world.alive(victim, dies_after=deed) as killed:
                found = await resize(world)
            assert killed is not None
            if killed.was_killed:
                killed_after.add(deed)
            assert found == expected, f"killed after {deed}, its {len(killed.writes)}th"
        # On a slow machine more is told of a change on its way: not all may be there every time.
        assert len(killed_after) > count // 3, (count, killed_after)
        assert killed_after >= DEEDS[victim], killed_after
        vmi = await world.cluster.get(VMIS, NAME)
        assert boot_id(vmi) == expected[0]["boot"]
