"""Edits of a running VM: the live part goes to the VMI at once, the rest is named as waiting for a restart.

The plan compares with the template that the VMI was started from, which a ControllerRevision keeps. The VMI's
annotation `kubevirt.io/vm-generation` says up to which generation of the VM all is done: while it is
the VM's own, there is nothing to plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from hotvirt.api import names
from hotvirt.api.core import ControllerRevision
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance
from hotvirt.api.resources import CONTROLLERREVISIONS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound
from hotvirt.plan.live import plan_update
from hotvirt.plan.revision import LABEL_VM_UID
from hotvirt.plan.runstrategy import FINAL_PHASES

from .caches import Caches
from .writes import write

REMEMBERED: Final = 1024
Template = dict[str, Any]


class LiveUpdater:
    def __init__(self, client: Client, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        # Revisions never change, so what was read once is true for good.
        self._baselines: OrderedDict[tuple[str, str], Template] = OrderedDict()

    async def sync(
        self, vm: VirtualMachine, vmi: VirtualMachineInstance
    ) -> tuple[VirtualMachineInstance, Sequence[str]]:
        """The VMI as it is then, and a sentence for each thing that waits for a restart."""
        generation = str(vm.metadata.generation)
        if vmi.status.phase in FINAL_PHASES:
            return vmi, ()
        if vmi.metadata.annotations.get(names.ANNOTATION_VM_GENERATION) == generation:
            return vmi, ()
        plan = plan_update(vm, vmi, self._caches.config, await self._baseline(vm, vmi))
        change = dict(plan.vmi_patch)
        if not plan.restart:
            change["metadata"] = {"annotations": {names.ANNOTATION_VM_GENERATION: generation}}
        if change:
            vmi = await write(self._client, self._caches.vmis, vmi, change)
        return vmi, [cause.message for cause in plan.restart]

    async def _baseline(self, vm: VirtualMachine, vmi: VirtualMachineInstance) -> Template | None:
        """The template of the start; None when its record is gone."""
        name = vmi.status.virtual_machine_revision_name
        key = (vm.metadata.namespace, name)
        if key in self._baselines:
            return self._baselines[key]
        revision = await self._revision(vm, name)
        if revision is None:
            return None
        template = (revision.data.get("spec") or {}).get("template") or {}
        baseline: Template = template.get("spec") or {}
        if name:
            self._baselines[key] = baseline
            if len(self._baselines) > REMEMBERED:
                self._baselines.popitem(last=False)
        return baseline

    async def _revision(self, vm: VirtualMachine, name: str) -> ControllerRevision | None:
        """By its name, or (when the VMI is so new that its status does not say it) the VM's newest."""
        namespace = vm.metadata.namespace
        if name:
            try:
                return await self._client.get(CONTROLLERREVISIONS, name, namespace, cls=ControllerRevision)
            except NotFound:
                return None
        known = await self._client.list(
            CONTROLLERREVISIONS,
            namespace,
            cls=ControllerRevision,
            label_selector=f"{LABEL_VM_UID}={vm.metadata.uid}",
        )
        return max(known.items, key=lambda revision: revision.revision, default=None)
