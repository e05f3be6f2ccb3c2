"""The guests that scenarios share: booted once, each left as it was found."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from contextlib import suppress
from subprocess import CompletedProcess
from typing import Any

from hotvirt.api import names
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import KUBEVIRTS, PODS, VMIS, VMS
from tests.faults.resizing import boot_id, edit, pod_of, rests
from tests.kube import Kube, Object, condition

from .place import Place, demo_vm
from .shell import run_in_guest
from .sizes import Sizes

BOOT, SLOW = 400.0, 240.0
PAGE = 4096
KERNELS_OWN = 200 << 20
"""The kernel keeps some memory for itself from the start."""


class Guest:
    """A VM of the demo guest that has booted."""

    def __init__(self, place: Place, kube: Kube, name: str, sockets: int, memory: str) -> None:
        self.place = place
        self.kube = kube
        self.name = name
        self.sockets = sockets
        self.memory = memory
        """Its size when a scenario finds it, and when a scenario leaves it."""
        self.boot = ""
        self.history: Sizes | None = None
        """All versions of its objects since the scenario began."""

    @property
    def namespace(self) -> str:
        return self.kube.namespace

    async def booted(self) -> None:
        """Wait for its agent and its web server; from here on `boot` is this boot."""
        vmi = await self.kube.until(
            VMIS,
            self.name,
            lambda each: (condition(each, "AgentConnected") or {}).get("status") == "True",
            BOOT,
        )
        self.boot = boot_id(vmi)
        await self.facts()

    async def ready(self) -> Guest:
        """Itself, when it has booted: others are of use while it boots."""
        if not self.boot:
            await self.booted()
        return self

    async def vm(self) -> Object:
        return await self.kube.get(VMS, self.name)

    async def vmi(self) -> Object:
        return await self.kube.get(VMIS, self.name)

    async def pod(self) -> Object:
        found = await pod_of(self.kube, self.name)
        return await self.kube.get(PODS, found.metadata.name)

    async def shell(self, command: str) -> str:
        return await run_in_guest(self.place, self.namespace, self.name, command)

    async def facts(self, address: str = "") -> Object:
        """What the guest's own web server says of it, at this address or the Pod's."""
        address = address or str((await self.vmi())["status"]["interfaces"][0]["ipAddress"])
        url = f"http://{address}/cgi-bin/facts"
        return await asyncio.to_thread(_page, url)

    async def edit(self, sockets: int | None = None, memory: str | None = None) -> None:
        await edit(self.kube, self.name, sockets, memory)

    def patch(self, template: Object, *more: str) -> CompletedProcess[str]:
        """kubectl's answer, with the warnings that it shows."""
        body = json.dumps({"spec": {"template": {"spec": template}}})
        return self.place.ask_kubectl(
            "patch", "vm", self.name, "-n", self.namespace, "--type=merge", *more, "-p", body
        )

    def change(self, template: Object) -> None:
        done = self.patch(template)
        assert done.returncode == 0, done.stderr

    async def until(self, holds: Any, within: float = SLOW) -> Object:
        return await self.kube.until(VMIS, self.name, holds, within)

    async def vm_until(self, holds: Any, within: float = SLOW) -> Object:
        return await self.kube.until(VMS, self.name, holds, within)

    async def becomes(self, sockets: int, memory: str) -> Object:
        """All agree on the size: the API, the Pod, its cgroup, and the guest itself, in the same boot."""
        vmi = await rests(self.kube, self.name, sockets, memory, SLOW)
        assert boot_id(vmi) == self.boot
        facts = await self.facts()
        assert facts["boot_id"] == self.boot
        assert facts["cpus_online"] == sockets
        missing = Quantity(memory).value - facts["mem_total_kb"] * 1024
        assert 0 <= missing < KERNELS_OWN, (memory, facts)
        self._cgroup_is_right(await self.pod())
        return vmi

    def _cgroup_is_right(self, pod: Object) -> None:
        has = self.place.limits(pod)
        wanted = pod["spec"]["containers"][0]["resources"].get("limits", {})
        if has is None:
            return
        if "memory" in wanted:
            assert has.memory == Quantity(wanted["memory"]).value // PAGE * PAGE
        if "cpu" in wanted:
            assert has.cpu == Quantity(wanted["cpu"]).milli

    async def left_as_found(self) -> None:
        await self.edit(self.sockets, self.memory)
        await self.becomes(self.sockets, self.memory)


def _page(url: str) -> Object:
    """Polled: a web server that is not there yet has no event."""
    deadline = time.monotonic() + BOOT
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=10) as reply:
            answer: Object = json.load(reply)
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


async def configure(kube: Kube, configuration: Object) -> None:
    """Change the cluster's settings; what is None goes. Returns when the controllers know."""
    changed = await kube.patch(KUBEVIRTS, names.KUBEVIRT_NAME, {"spec": {"configuration": configuration}})
    generation = changed["metadata"]["generation"]
    await kube.until(
        KUBEVIRTS, names.KUBEVIRT_NAME, lambda each: each["status"].get("observedGeneration", 0) >= generation
    )


MAIN, VALUE, RATIO = "main", "by-value", "by-ratio"


async def begin_all(place: Place, kube: Kube) -> dict[str, Guest]:
    """Three guests of up to 8 sockets, for the three ways to say how far they may grow.

    `main` has limits, and room for memory; `by-ratio` is of the quality of service Guaranteed.
    """
    limited = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "8"}}
    same = {"memory": "512Mi", "cpu": "600m"}
    await _start(
        place, kube, MAIN, cpu={"sockets": 4, "maxSockets": 8}, memory={"guest": "1Gi"}, resources=limited
    )
    await configure(kube, {"liveUpdateConfiguration": {"maxCpuSockets": 8}})
    await _start(place, kube, VALUE, cpu={"sockets": 1}, memory={"guest": "256Mi"})
    await configure(kube, {"liveUpdateConfiguration": {"maxCpuSockets": None, "maxHotplugRatio": 4}})
    memory = {"guest": "512Mi", "maxGuest": "1Gi"}
    await _start(
        place, kube, RATIO, cpu={"sockets": 2}, memory=memory, resources={"requests": same, "limits": same}
    )
    await configure(kube, {"liveUpdateConfiguration": None})
    return {
        MAIN: Guest(place, kube, MAIN, 4, "1Gi"),
        VALUE: Guest(place, kube, VALUE, 1, "256Mi"),
        RATIO: Guest(place, kube, RATIO, 2, "512Mi"),
    }


async def _start(place: Place, kube: Kube, name: str, **domain: Any) -> None:
    """Returns when its VMI is there: the maxima are those of that moment."""
    vm = demo_vm(name, kube.namespace, **domain)
    vm["spec"]["template"]["metadata"] = {"labels": {"app": name}}
    place.apply(vm)
    vmi = await kube.until(VMIS, name, lambda each: True)
    assert vmi["spec"]["domain"]["cpu"]["maxSockets"] == 8
