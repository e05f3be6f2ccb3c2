"""What a VM was started with: the ControllerRevision that later edits are compared with, and names that stay.

A restart gives the guest the same firmware UUID and MAC addresses as before: they follow from the VM's uid.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, Final

from hotvirt.api.kubevirt import VirtualMachine
from hotvirt.api.meta import owner_reference

LABEL_VM_UID: Final = "hotvirt.io/vm-uid"
PREFIX: Final = "revision-start-vm-"


def revision_name(vm_uid: str, generation: int | str) -> str:
    return f"{PREFIX}{vm_uid}-{generation}"


def start_revision(vm: VirtualMachine, spec: dict[str, Any]) -> dict[str, Any]:
    """The ControllerRevision of a start; `spec` is the VM's spec, whole."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(vm.metadata.uid, vm.metadata.generation),
            "namespace": vm.metadata.namespace,
            "labels": {LABEL_VM_UID: vm.metadata.uid},
            "ownerReferences": [owner_reference(vm)],
        },
        "revision": vm.metadata.generation,
        "data": {"spec": spec},
    }


def firmware_uuid(vm_uid: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"hotvirt.io/firmware/{vm_uid}"))


def mac_address(owner_uid: str, interface: str) -> str:
    """A locally administered unicast address."""
    digest = hashlib.sha256(f"{owner_uid}/{interface}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def with_stable_names(spec: dict[str, Any], vm_uid: str) -> dict[str, Any]:
    """A VMI's spec with the firmware UUID and MAC addresses that it does not name itself."""
    domain = dict(spec.get("domain") or {})
    firmware = dict(domain.get("firmware") or {})
    firmware.setdefault("uuid", firmware_uuid(vm_uid))
    devices = dict(domain.get("devices") or {})
    if devices.get("interfaces"):
        devices["interfaces"] = [
            {"macAddress": mac_address(vm_uid, interface.get("name", "")), **interface}
            for interface in devices["interfaces"]
        ]
    return {**spec, "domain": {**domain, "firmware": firmware, "devices": devices}}
