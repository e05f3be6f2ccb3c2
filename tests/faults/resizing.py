"""Editing the size of running machines, and saying when all agree on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.pods import Pod
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import KUBEVIRTS, PODS, VMIS, VMS
from hotvirt.plan.change import CONDITIONS
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.podresize import actual_size, asked_size, size_of
from hotvirt.plan.resources import pod_resources, with_limits_of_others
from tests.inprocess import Cluster, vm_manifest
from tests.kube import Object, condition, shows

LONG = 90.0


def machine(name: str, sockets: int = 2, guest: str = "1Gi", **domain: Any) -> Object:
    """A VM with room to grow: to 8 sockets and 4 times its memory."""
    manifest = vm_manifest(name)
    manifest["spec"]["template"]["spec"]["domain"] |= {
        "cpu": {"sockets": sockets, "cores": 1, "threads": 1, "maxSockets": 8},
        "memory": {"guest": guest},
        **domain,
    }
    return manifest


async def boot(cluster: Cluster, manifest: Object) -> Object:
    """The VMI, running and at rest."""
    await cluster.create(VMS, manifest)
    name = manifest["metadata"]["name"]
    await cluster.until(VMS, name, shows("Running"), LONG)
    domain = manifest["spec"]["template"]["spec"]["domain"]
    return await rests(cluster, name, domain["cpu"]["sockets"], domain["memory"]["guest"])


async def edit(cluster: Cluster, name: str, sockets: int | None = None, guest: str | None = None) -> None:
    domain: Object = {}
    if sockets is not None:
        domain["cpu"] = {"sockets": sockets}
    if guest is not None:
        domain["memory"] = {"guest": guest}
    await cluster.patch(VMS, name, {"spec": {"template": {"spec": {"domain": domain}}}})


async def gate(cluster: Cluster, on: bool) -> None:
    """Switch InPlaceHotplug on or off."""
    developer = {"disabledFeatureGates": [] if on else [names.GATE_IN_PLACE_HOTPLUG]}
    configuration = {"spec": {"configuration": {"developerConfiguration": developer}}}
    await cluster.patch(KUBEVIRTS, names.KUBEVIRT_NAME, configuration)


def at_rest(sockets: int, guest: str) -> Callable[[Object], bool]:
    """Spec, hypervisor, guest and what was granted and claimed are all of this size, and nothing goes on."""
    memory = Quantity(guest)

    def holds(obj: Object) -> bool:
        vmi = codec.convert(obj, VirtualMachineInstance)
        status, own = vmi.status, vmi.status.hotvirt
        cpu, domain = status.current_cpu_topology, vmi.spec.domain
        if cpu is None or status.memory is None or domain.cpu is None or domain.memory is None:
            return False
        sizes = [own.granted, own.claimed]
        return (
            domain.cpu.sockets == cpu.sockets == sockets
            and domain.memory.guest == status.memory.guest_current == status.memory.guest_requested == memory
            and all(each and (each.vcpus, each.memory) == (sockets, memory) for each in sizes)
            and own.settled_generation == vmi.metadata.generation
            and not any(condition(obj, kind) for kind in CONDITIONS)
            and own.change is None
        )

    return holds


async def rests(cluster: Cluster, name: str, sockets: int, guest: str, within: float = LONG) -> Object:
    """The VMI once all agree on this size; the Pod has it too, asked and in force."""
    edited = str((await cluster.get(VMS, name))["metadata"]["generation"])
    holds = at_rest(sockets, guest)

    def last_edit_is_done(vmi: Object) -> bool:
        # A size may be that of the last edit by chance: before the edit has got here at all.
        done = vmi["metadata"].get("annotations", {}).get(names.ANNOTATION_VM_GENERATION)
        return done == edited and holds(vmi)

    found = await cluster.until(VMIS, name, last_edit_is_done, within)
    assert ready_is_current(found), found["status"]["conditions"]
    vmi = codec.convert(found, VirtualMachineInstance)
    pod = await pod_of(cluster, name)
    asked = asked_size(pod, names.CONTAINER_COMPUTE)
    needs = pod_resources(vmi.spec, ClusterConfig(), asked.own_limits)
    wanted = size_of(with_limits_of_others(needs, asked.limits, vmi.spec, ClusterConfig()))
    assert asked == wanted
    # A size that was asked for and taken back at once may still pass through the node.
    await cluster.until(
        PODS,
        pod.metadata.name,
        lambda each: actual_size(codec.convert(each, Pod), names.CONTAINER_COMPUTE) == wanted,
    )
    return found


async def pod_of(cluster: Cluster, name: str) -> Pod:
    selector = f"{names.LABEL_VM_NAME}={name}"
    (pod,) = (await cluster.admin.list(PODS, cluster.namespace, label_selector=selector, cls=Pod)).items
    return pod


def ready_is_current(vmi: Object) -> bool:
    """Whether `kubectl wait --for=condition=Ready` believes what the VMI says."""
    ready = condition(vmi, "Ready")
    return ready is not None and ready.get("observedGeneration") == vmi["metadata"]["generation"]


def boot_id(vmi: Object) -> str:
    return str(vmi["status"]["hotvirt"]["bootId"])


def reason(kind: str, *reasons: str) -> Callable[[Object], bool]:
    return lambda obj: (condition(obj, kind) or {}).get("reason") in reasons
