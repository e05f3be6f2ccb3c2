"""What a VMI is given that its maker left open: topology, maxima, memory, disks, network, machine type.

Only what is missing (or null) is filled in; what is there stays as it was written. Done once, when the VMI is
created, so that a later change of the defaults never touches a running machine.
"""

from __future__ import annotations

from typing import Any, Final

from hotvirt.api import codec
from hotvirt.api.kubevirt import VMISpec
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.maxima import max_guest, max_sockets
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.topology import topology

DEFAULT_NETWORK: Final = "default"
DEFAULT_MACHINE: Final = "q35"
MACHINES_OF: Final = {"arm64": "virt"}
DEFAULT_GRACE_SECONDS: Final = 30
DEFAULT_BUS: Final = {"disk": "virtio", "cdrom": "sata", "lun": "scsi"}


def vmi_defaults(spec: dict[str, Any], config: ClusterConfig) -> dict[str, Any]:
    """A copy of the spec of a VMI with everything filled in that it runs with."""
    filled: dict[str, Any] = codec.builtins(spec)
    typed = codec.convert(spec, VMISpec)
    domain = _child(filled, "domain")
    _fill_cpu(_child(domain, "cpu"), typed, config)
    _fill_memory(_child(domain, "memory"), typed, config)
    _fill(_child(domain, "machine"), "type", MACHINES_OF.get(typed.architecture, DEFAULT_MACHINE))
    devices = _child(domain, "devices")
    _fill_disks(filled, devices)
    _fill_network(filled, devices)
    if domain["memory"] == {}:
        del domain["memory"]
    _fill(filled, "terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    return filled


def _child(parent: dict[str, Any], name: str) -> dict[str, Any]:
    if parent.get(name) is None:
        parent[name] = {}
    child: dict[str, Any] = parent[name]
    return child


def _fill(target: dict[str, Any], name: str, value: Any) -> None:
    if not target.get(name) and target.get(name) != 0:
        target[name] = value


def _fill_cpu(cpu: dict[str, Any], spec: VMISpec, config: ClusterConfig) -> None:
    shape = topology(spec.domain)
    for name, value in (("sockets", shape.sockets), ("cores", shape.cores), ("threads", shape.threads)):
        cpu[name] = cpu.get(name) or value
    cpu["maxSockets"] = cpu.get("maxSockets") or max_sockets(spec.domain, config)


def _fill_memory(memory: dict[str, Any], spec: VMISpec, config: ClusterConfig) -> None:
    guest = guest_memory(spec)
    if not guest:
        return
    if not memory.get("guest"):
        memory["guest"] = str(guest)
    if not memory.get("maxGuest"):
        most = max_guest(spec, config)
        if most:
            memory["maxGuest"] = str(most)
        else:
            memory.pop("maxGuest", None)


def _fill_disks(spec: dict[str, Any], devices: dict[str, Any]) -> None:
    """Every disk gets a kind and a bus; a volume without a disk gets one, as in KubeVirt."""
    disks: list[dict[str, Any]] = list(devices.get("disks") or ())
    named = {disk.get("name") for disk in disks}
    for volume in spec.get("volumes") or ():
        if volume.get("name") not in named:
            disks.append({"name": volume.get("name")})
    for disk in disks:
        kind = next((kind for kind in DEFAULT_BUS if disk.get(kind) is not None), "disk")
        _fill(_child(disk, kind), "bus", DEFAULT_BUS[kind])
    if disks:
        devices["disks"] = disks


def _fill_network(spec: dict[str, Any], devices: dict[str, Any]) -> None:
    if devices.get("interfaces") or spec.get("networks") or devices.get("autoattachPodInterface") is False:
        return
    devices["interfaces"] = [{"name": DEFAULT_NETWORK, "masquerade": {}}]
    spec["networks"] = [{"name": DEFAULT_NETWORK, "pod": {}}]
