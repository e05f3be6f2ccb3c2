"""One ordered log of all that decides whether a guest fits its Pod, checked at every entry.

What goes in: sizes put in force by the node (cgroups), sizes asked of the hypervisor, what the API holds of
Pods and VMIs. What must hold after each: guest and overhead fit the memory limit in force, where there is
one; they are covered by the request, unless less was asked for; the hypervisor has no more than was claimed,
and no more is claimed than was granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import GuestSize, VirtualMachineInstance, VMISpec
from hotvirt.api.pods import Pod
from hotvirt.embedded.apiserver.store import Change
from hotvirt.plan.change import Guest, resized
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import Accelerator, guest_memory, overhead
from hotvirt.plan.podresize import actual_size, asked_size

SHOWN: Final = 25


@dataclass
class Machine:
    """One Pod and the machine in it, as the log has it so far."""

    vmi: VirtualMachineInstance | None = None
    pod: Pod | None = None
    limit: int | None = None
    """The memory limit in force; None: there is none."""
    plugged: Guest | None = None
    """What the hypervisor has or was asked for."""


class SizeLog:
    def __init__(
        self, accelerator: Accelerator | None = None, parks: bool = False, from_api: bool = False
    ) -> None:
        self.entries: list[str] = []
        self.broken: list[str] = []
        self._accelerator = accelerator
        self._parks = parks
        """vCPUs that went stay plugged, and count again when no agent tells that they are not used: then only
        memory can be compared with what is claimed and granted."""
        self._from_api = from_api
        """Nobody sees cgroups and hypervisor: what is in force is what the Pod's status says, and the
        hypervisor is taken to have all that was claimed."""
        self._machines: dict[str, Machine] = {}

    def check(self) -> None:
        assert not self.broken, "\n".join(self.broken)
        assert any("hypervisor" in each for each in self.entries), "the log has seen no machine"

    # What happens

    def cgroup(self, uid: str, memory_limit: int | None) -> None:
        machine = self._of(uid)
        machine.limit = memory_limit
        self._add(uid, f"cgroup limit {memory_limit}")

    def hypervisor(self, uid: str, vcpus: int, memory: int) -> None:
        machine = self._of(uid)
        machine.plugged = Guest(vcpus, memory)
        self._add(uid, f"hypervisor {vcpus} vCPUs, {memory}")

    def api(self, change: Change) -> None:
        resource = change.new.key[0]
        if change.type == "DELETED" or resource not in ("pods", "virtualmachineinstances.kubevirt.io"):
            return
        self.object(resource, msgspec.json.decode(change.new.data))

    def object(self, resource: str, obj: dict[str, Any]) -> None:
        if resource == "pods":
            pod = codec.convert(obj, Pod)
            machine = self._of(pod.metadata.uid)
            machine.pod = pod
            asked, actual = (
                asked_size(pod, names.CONTAINER_COMPUTE),
                actual_size(pod, names.CONTAINER_COMPUTE),
            )
            if self._from_api and actual is not None:
                limit = actual.limits.get("memory")
                machine.limit = limit.value if limit is not None else None
            self._add(pod.metadata.uid, f"Pod asked {asked}; in force {actual or 'nothing'}")
            return
        vmi = codec.convert(obj, VirtualMachineInstance)
        for uid, machine in self._machines.items():
            owner = machine.pod.metadata.controller_of() if machine.pod else None
            if owner is not None and owner.uid == vmi.metadata.uid:
                machine.vmi = vmi
                own = vmi.status.hotvirt
                wanted = guest_memory(vmi.spec)
                said = f"VMI wants {wanted}, granted {_text(own.granted)}, claimed {_text(own.claimed)}"
                if self._from_api and own.claimed is not None and own.claimed.memory is not None:
                    machine.plugged = Guest(own.claimed.vcpus, own.claimed.memory.value)
                    said += ", which the hypervisor may have"
                self._add(uid, said)

    # What must hold

    def _of(self, uid: str) -> Machine:
        return self._machines.setdefault(uid, Machine())

    def _add(self, uid: str, text: str) -> None:
        entry = f"{len(self.entries)} {uid[:8]} {text}"
        if self.entries and self.entries[-1].partition(" ")[2] == entry.partition(" ")[2]:
            return
        self.entries.append(entry)
        for problem in self._problems(self._machines[uid]):
            self.broken += [*self.entries[-SHOWN:], f"  after entry {entry}: {problem}"]

    def _problems(self, machine: Machine) -> list[str]:
        has, vmi, pod = machine.plugged, machine.vmi, machine.pod
        if has is None or vmi is None or pod is None:
            return []
        problems = []
        spec = resized(vmi.spec, has)
        need = has.memory + overhead(spec, ClusterConfig(), self._accelerator).value
        if machine.limit is not None and need > machine.limit:
            problems.append(f"{need} bytes do not fit the limit in force, {machine.limit}")
        if not _overcommits(vmi.spec):
            sizes = {"asked for": asked_size(pod, names.CONTAINER_COMPUTE)}
            actual = actual_size(pod, names.CONTAINER_COMPUTE)
            if actual is not None:
                sizes["in force"] = actual
            for what, size in sizes.items():
                request = size.requests["memory"].value
                if request < need:
                    problems.append(f"{need} bytes are not covered by the request {what}, {request}")
        claimed, granted = vmi.status.hotvirt.claimed, vmi.status.hotvirt.granted
        if claimed is not None and claimed.memory is not None:
            if has.memory > claimed.memory.value or (has.vcpus > claimed.vcpus and not self._parks):
                problems.append(f"the hypervisor has {has}, claimed is {_text(claimed)}")
            allowed = granted.memory if granted else None
            more_vcpus = granted is not None and claimed.vcpus > granted.vcpus and not self._parks
            if granted and allowed and (claimed.memory > allowed or more_vcpus):
                problems.append(f"claimed is {_text(claimed)}, granted {_text(granted)}")
        return problems


def _overcommits(spec: VMISpec) -> bool:
    given = spec.domain.resources
    request = given.requests.get("memory") if given else None
    return bool(given and given.overcommit_guest_overhead) or bool(request and request < guest_memory(spec))


def _text(size: GuestSize | None) -> str:
    return f"{size.vcpus}/{size.memory}" if size else "nothing"
