"""Starting a VM: its DataVolumes, the record of what it was started with, and its VMI."""

from __future__ import annotations

from typing import Any

from hotvirt.api import codec, names
from hotvirt.api.core import ControllerRevision
from hotvirt.api.kubevirt import VirtualMachine
from hotvirt.api.meta import owner_reference
from hotvirt.api.resources import CONTROLLERREVISIONS, DATAVOLUMES, VMIS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from hotvirt.kube.events import Recorder
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.instance import FAILED_CREATE, Problem
from hotvirt.plan.revision import LABEL_VM_UID, start_revision, with_stable_names

from .caches import Caches

START_PAUSED = "Paused"
NO_CDI = "this cluster has no DataVolumes; install CDI, or make a claim of that name yourself"


class Starter:
    def __init__(self, client: Client, caches: Caches, recorder: Recorder) -> None:
        self._client = client
        self._caches = caches
        self._recorder = recorder

    async def make_data_volumes(self, vm: VirtualMachine) -> Problem | None:
        """Make those of the VM's dataVolumeTemplates that are not there; an existing claim counts."""
        namespace = vm.metadata.namespace
        missing = [
            name
            for template in vm.spec.data_volume_templates
            if (name := template.metadata.get("name", ""))
            and self._caches.data_volumes.get(namespace, name) is None
            and self._caches.claims.get(namespace, name) is None
        ]
        if not missing:
            return None
        raw = self._caches.vms.raw(namespace, vm.metadata.name) or {}
        for template in raw.get("spec", {}).get("dataVolumeTemplates") or ():
            if template["metadata"]["name"] in missing:
                problem = await self._make_data_volume(vm, template)
                if problem is not None:
                    return problem
        return None

    async def _make_data_volume(self, vm: VirtualMachine, template: dict[str, Any]) -> Problem | None:
        metadata = template["metadata"]
        labels = {**(metadata.get("labels") or {}), names.LABEL_CREATED_BY: vm.metadata.uid}
        wanted = {
            "apiVersion": DATAVOLUMES.api_version,
            "kind": DATAVOLUMES.kind,
            "metadata": {
                "name": metadata["name"],
                "namespace": vm.metadata.namespace,
                "labels": labels,
                "annotations": metadata.get("annotations") or {},
                "ownerReferences": [owner_reference(vm)],
            },
            "spec": template.get("spec") or {},
        }
        try:
            await self._client.create(DATAVOLUMES, codec.without_nulls(wanted), vm.metadata.namespace)
        except AlreadyExists:
            return None
        except (Forbidden, Invalid, BadRequest, NotFound) as error:
            if error.namespace_ends:
                raise
            why = NO_CDI if isinstance(error, NotFound) else error.message
            message = f"Error creating DataVolume {metadata['name']}: {why}"
            self._recorder.event(vm, "Warning", "FailedDataVolumeCreate", message)
            return Problem(FAILED_CREATE, message)
        self._recorder.event(
            vm, "Normal", "SuccessfulDataVolumeCreate", f"Created DataVolume {metadata['name']}"
        )
        return None

    async def start(self, vm: VirtualMachine, *, paused: bool) -> Problem | None:
        """Make the VMI. Done twice, it is there once."""
        namespace, name = vm.metadata.key
        raw = self._caches.vms.raw(namespace, name)
        if raw is None or raw["metadata"].get("generation") != vm.metadata.generation:
            return None  # changed a moment ago: its event brings us back
        await self._record(vm, raw["spec"])
        try:
            await self._client.create(VMIS, self._instance_of(vm, raw, paused), namespace, cls=bytes)
        except AlreadyExists:
            return None
        except (Forbidden, Invalid, BadRequest) as error:
            if error.namespace_ends:
                raise
            message = f"Error creating virtual machine instance: {error.message}"
            self._recorder.event(vm, "Warning", FAILED_CREATE, message)
            return Problem(FAILED_CREATE, message)
        self._recorder.event(
            vm,
            "Normal",
            "SuccessfulCreate",
            f"Started the virtual machine by creating the new virtual machine instance {name}",
        )
        return None

    async def _record(self, vm: VirtualMachine, spec: dict[str, Any]) -> None:
        """Keep the spec of this start, and of no earlier one."""
        namespace = vm.metadata.namespace
        revision = start_revision(vm, codec.without_nulls(spec))
        try:
            await self._client.create(CONTROLLERREVISIONS, revision, namespace, cls=bytes)
        except AlreadyExists:
            pass  # the same generation is the same spec
        if vm.metadata.generation <= 1:
            return  # there was none before
        known = await self._client.list(
            CONTROLLERREVISIONS,
            namespace,
            cls=ControllerRevision,
            label_selector=f"{LABEL_VM_UID}={vm.metadata.uid}",
        )
        for old in known.items:
            if old.metadata.name != revision["metadata"]["name"]:
                try:
                    await self._client.delete(CONTROLLERREVISIONS, old.metadata.name, namespace)
                except NotFound:
                    continue

    def _instance_of(self, vm: VirtualMachine, raw: dict[str, Any], paused: bool) -> dict[str, Any]:
        template = codec.without_nulls(raw["spec"].get("template") or {})
        metadata = template.get("metadata") or {}
        # Defaulted here as well as at admission: the interfaces that appear get their stable addresses now.
        spec = vmi_defaults(template.get("spec") or {}, self._caches.config)
        spec = with_stable_names(spec, vm.metadata.uid)
        if paused:
            spec["startStrategy"] = START_PAUSED
        return {
            "apiVersion": VMIS.api_version,
            "kind": VMIS.kind,
            "metadata": {
                "name": vm.metadata.name,
                "namespace": vm.metadata.namespace,
                "labels": metadata.get("labels") or {},
                "annotations": {
                    **(metadata.get("annotations") or {}),
                    names.ANNOTATION_VM_GENERATION: str(vm.metadata.generation),
                },
                "finalizers": [names.FINALIZER_VMI],
                "ownerReferences": [owner_reference(vm)],
            },
            "spec": spec,
        }
