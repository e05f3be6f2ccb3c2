"""vCPUs and memory of running guests, up and down, with kubectl: in place, and seen by the guest itself."""

from __future__ import annotations

import asyncio
import time

import pytest

from hotvirt.api.resources import EVENTS, VMIMS
from tests.kube import Object, condition

from .guests import SLOW, Guest, configure
from .place import Place

TOGETHER = 0.1
TRIES = 300


def sockets(number: int) -> Object:
    return {"domain": {"cpu": {"sockets": number}}}


async def kubectl_started(place: Place, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        place.kubectl_program,
        *("--kubeconfig", str(place.kubeconfig)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def walk(guest: Guest) -> None:
    """As the user guide has it: one socket more, 5 instead of 4, watched from before the patch."""
    one_more = guest.sockets + 1
    place, where = guest.place, ("-n", guest.namespace)
    status = (await guest.vmi())["status"]
    assert status["currentCPUTopology"] == {"cores": 1, "sockets": guest.sockets, "threads": 1}
    # Where vCPUs are parked instead of unplugged, those of an earlier scenario are still there.
    plugged = max(one_more, status["hotvirt"]["vcpus"]["plugged"])
    watch = await kubectl_started(
        place,
        *("get", "vmi", guest.name, *where, "--watch", "-o"),
        r"jsonpath={.status.conditions[*].type}{'\n'}",
    )
    assert watch.stdout is not None
    try:
        assert b"AgentConnected" in await watch.stdout.readline()  # it watches
        where_from = '"path": "/spec/template/spec/domain/cpu/sockets"'
        change = f'[{{"op": "replace", {where_from}, "value": {one_more}}}]'
        patch = await kubectl_started(place, "patch", "vm", guest.name, *where, "--type=json", f"-p={change}")
        said = await patch.communicate()
        assert patch.returncode == 0, said
        assert b"live" in said[1], "the warnings say what is live"
        async with asyncio.timeout(SLOW):
            while b"HotVCPUChange" not in (line := await watch.stdout.readline()):
                assert line, "the watch ended"
    finally:
        watch.terminate()
        await watch.wait()
    vmi = await guest.becomes(one_more, guest.memory)
    assert vmi["status"]["currentCPUTopology"]["sockets"] == one_more
    assert vmi["status"]["hotvirt"]["vcpus"] == {"plugged": plugged, "online": one_more}


@pytest.mark.asyncio(loop_scope="session")
class Resize:
    async def test_the_walk_with_each_way_to_set_the_maximum(self, all_three: list[Guest]):
        """VM, cluster's value, cluster's ratio; all at once."""
        await asyncio.gather(*(walk(each) for each in all_three))
        kube = all_three[0].kube
        assert (await kube.admin.list(VMIMS, kube.namespace)).items == []

    async def test_events_have_both_sizes_and_the_time(self, guaranteed: Guest):
        """Not of `main`: events about what is resized all the time are combined, and left out in the end."""
        await guaranteed.edit(5)
        vmi = await guaranteed.becomes(5, "512Mi")
        selector = f"involvedObject.uid={vmi['metadata']['uid']}"
        started = "sockets 2 → 5"
        kube = guaranteed.kube

        def told(events: list[Object], reason: str) -> list[str]:
            return [each["message"] for each in events if each["reason"] == reason]

        async with asyncio.timeout(SLOW):
            while True:
                events = (await kube.admin.list(EVENTS, kube.namespace, field_selector=selector)).items
                ended = [each for each in told(events, "ResizeCompleted") if each.startswith(started)]
                if ended:
                    break
                await asyncio.sleep(0.1)  # events come when they come
        assert ended[-1].endswith(" ms")
        assert any(each.startswith(started) for each in told(events, "ResizeStarted"))

    async def test_both_up_and_both_down(self, main: Guest):
        await main.edit(6, "2Gi")
        await main.becomes(6, "2Gi")
        await main.edit(1, "1Gi")
        await main.becomes(1, "1Gi")

    async def test_one_up_and_the_other_down(self, main: Guest):
        await main.edit(2, "1536Mi")
        await main.becomes(2, "1536Mi")
        await main.edit(5, "1Gi")
        await main.becomes(5, "1Gi")

    async def test_a_second_edit_in_the_middle(self, main: Guest):
        await main.edit(8, "2Gi")
        await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
        await main.edit(2, "1536Mi")
        await main.becomes(2, "1536Mi")

    async def test_an_edit_and_its_revert_within_100_ms(self, main: Guest):
        """The end is that of the last. A pair that a busy machine held up does not count: another follows."""
        for _ in range(TRIES):
            await main.edit(6, "2Gi")
            edited = time.monotonic()
            await main.edit(4, "1Gi")
            if time.monotonic() - edited < TOGETHER:
                break
        else:
            raise AssertionError(f"no pair of edits was made within {TOGETHER} s")
        await main.becomes(4, "1Gi")

    async def test_the_quality_of_service_stays(self, guaranteed: Guest):
        assert (await guaranteed.pod())["status"]["qosClass"] == "Guaranteed"
        await guaranteed.edit(6, "1Gi")
        await guaranteed.becomes(6, "1Gi")
        pod = await guaranteed.pod()
        assert pod["status"]["qosClass"] == "Guaranteed"
        for container in pod["spec"]["containers"]:
            assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.asyncio(loop_scope="session")
class Staged:
    """What waits for a restart, and says so."""

    async def test_the_live_part_is_done_and_the_rest_waits_with_every_cause(self, main: Guest):
        main.change({"hostname": "other", "domain": {"cpu": {"sockets": 3, "model": "max"}}})
        vm = await main.vm_until(lambda each: condition(each, "RestartRequired"))
        message = (condition(vm, "RestartRequired") or {})["message"]
        assert "hostname" in message
        assert "domain.cpu.model" in message
        assert "sockets" not in message
        await main.until(lambda vmi: vmi["status"]["currentCPUTopology"]["sockets"] == 3)
        assert (await main.facts())["cpus_online"] == 3
        main.change({"hostname": None, "domain": {"cpu": {"model": None}}})
        await main.vm_until(restart_not_required)

    async def test_more_than_the_maximum_is_refused_and_nothing_moves(self, main: Guest):
        done = main.patch(sockets(9))
        assert done.returncode == 1
        assert "spec.template.spec.domain.cpu.sockets" in done.stderr
        assert (await main.vmi())["spec"]["domain"]["cpu"]["sockets"] == 4

    async def test_a_dry_run_says_what_would_happen(self, main: Guest):
        before = await main.vm()
        done = main.patch(sockets(5), "--dry-run=server")
        assert done.returncode == 0, done.stderr
        assert "live" in done.stderr
        assert (await main.vm())["metadata"]["generation"] == before["metadata"]["generation"]

    async def test_stage_has_everything_wait_and_live_update_does_it(self, main: Guest):
        try:
            await configure(main.kube, {"vmRolloutStrategy": "Stage"})
            main.change(sockets(5))
            vm = await main.vm_until(lambda each: condition(each, "RestartRequired"))
            assert "domain.cpu.sockets" in (condition(vm, "RestartRequired") or {})["message"]
            assert (await main.vmi())["spec"]["domain"]["cpu"]["sockets"] == 4
        finally:
            await configure(main.kube, {"vmRolloutStrategy": None})
        await main.becomes(5, "1Gi")
        await main.vm_until(restart_not_required)

    async def test_another_quality_of_service_waits(self, guaranteed: Guest):
        less = {"domain": {"resources": {"requests": {"cpu": "100m"}}}}
        guaranteed.change(less)
        vm = await guaranteed.vm_until(lambda each: condition(each, "RestartRequired"))
        assert "Guaranteed" in (condition(vm, "RestartRequired") or {})["message"]
        less["domain"]["resources"]["requests"]["cpu"] = "600m"
        guaranteed.change(less)
        await guaranteed.vm_until(restart_not_required)


def restart_not_required(vm: Object) -> bool:
    told = vm["status"].get("observedGeneration") == vm["metadata"]["generation"]
    return told and condition(vm, "RestartRequired") is None
