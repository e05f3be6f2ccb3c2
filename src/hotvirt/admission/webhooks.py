"""Admission: what users write is filled in, checked, and answered with what will come of it.

The same object serves a cluster's webhooks (`review.py`) and the embedded API server, which calls it in
process. What it must read (the running machine behind a VM) comes through lookups, so that both can
supply them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from hotvirt.admission.request import AdmissionRequest, AdmissionResponse, Rule, forbid, refuse
from hotvirt.admission.warnings import plan_warnings, size_warnings, unacted_warning
from hotvirt.api import names
from hotvirt.api.resources import DATAVOLUMES, KUBEVIRTS, VMIMS, VMIS, VMS
from hotvirt.kube.errors import ApiError
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.headroom import Surroundings
from hotvirt.plan.live import plan_update
from hotvirt.plan.validate import validate_edit, validate_vm, validate_vmi
from hotvirt.plan.validate_cluster import validate_kubevirt
from hotvirt.plan.validate_storage import validate_data_volume

__all__ = ["Admission", "AdmissionRequest", "AdmissionResponse", "Lookup", "Rule"]

log = logging.getLogger(__name__)

Lookup = Callable[[str, str], Awaitable[dict[str, Any] | None]]
"""(namespace, name) to the object, or None when there is none."""

Around = Callable[[dict[str, Any]], Surroundings]
"""A VMI to what surrounds it; answers at once."""

_ALLOWED: Final = AdmissionResponse()
LOOK_WITHIN: Final = 3.0
"""Seconds for looking at the running machine: an API server that is too busy to show it within ten seconds
would have the edit refused."""


class Admission:
    """Decides about each write to Hotvirt's kinds; any other write is allowed as it is."""

    mutating_rules: Final = (Rule(VMIS, ("CREATE",)),)
    rules: Final = (
        Rule(VMS, ("CREATE", "UPDATE")),
        Rule(VMIS, ("CREATE", "UPDATE")),
        Rule(VMIMS, ("CREATE",)),
        Rule(KUBEVIRTS, ("CREATE", "UPDATE")),
        Rule(DATAVOLUMES, ("CREATE", "UPDATE")),
    )

    def __init__(
        self,
        config: Callable[[], ClusterConfig],
        vmi: Lookup | None = None,
        revision: Lookup | None = None,
        around: Around | None = None,
    ) -> None:
        """`vmi` finds a running machine, `revision` the ControllerRevision that it was started from,
        `around` what is free on its node and in its quotas.
        """
        self._config = config
        self._vmi = vmi
        self._revision = revision
        self._around = around
        self._validators = {
            VMS.group_resource: self._validate_vm,
            VMIS.group_resource: self._validate_vmi,
            VMIMS.group_resource: self._validate_migration,
            KUBEVIRTS.group_resource: self._validate_kubevirt,
            DATAVOLUMES.group_resource: self._validate_data_volume,
        }

    async def mutate(self, request: AdmissionRequest) -> AdmissionResponse:
        """Fill in what was left open. A VM is kept as its owner wrote it; its VMI gets the defaults."""
        if not _applies(self.mutating_rules, request) or request.object is None:
            return _ALLOWED
        try:
            spec = vmi_defaults(request.object.get("spec") or {}, self._config())
        except msgspec.ValidationError:
            # A value of the wrong type: the schema and the checks name its field.
            return _ALLOWED
        return AdmissionResponse(object={**request.object, "spec": spec})

    async def validate(self, request: AdmissionRequest) -> AdmissionResponse:
        """Refuse what cannot work, with every cause; warn of what has no effect and of what waits."""
        if not _applies(self.rules, request) or request.object is None or request.is_deleting:
            return _ALLOWED
        if not request.changes_spec:
            return _ALLOWED
        return await self._validators[request.resource](request, request.object)

    async def _validate_vm(self, request: AdmissionRequest, vm: dict[str, Any]) -> AdmissionResponse:
        causes = validate_vm(vm, self._config())
        if causes:
            return refuse(causes)
        if request.user in names.HOTVIRT_USERS:
            return _ALLOWED
        warnings = unacted_warning(VMS.kind, vm)
        if _template(vm) == _template(request.old_object):
            return AdmissionResponse(warnings=warnings)
        warnings += size_warnings(vm)
        if request.old_object is None or self._vmi is None:
            return AdmissionResponse(warnings=warnings)
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                vmi = await self._vmi(request.namespace, request.name)
                baseline = None if vmi is None else await self._started_from(request.namespace, vmi)
        except (ApiError, TimeoutError) as error:
            # The edit itself is fine, and the VM controller plans it again: only the preview is missing.
            why = error if isinstance(error, ApiError) else f"no answer within {LOOK_WITHIN:g} s"
            log.warning("cannot look at the machine of %s/%s: %s", request.namespace, request.name, why)
            warnings.append(
                "The running machine could not be looked at; the VM's conditions will tell what waits."
            )
            return AdmissionResponse(warnings=warnings)
        if vmi is None:
            return AdmissionResponse(warnings=warnings)
        causes = validate_edit(vm, vmi)
        if causes:
            return refuse(causes)
        around = self._around(vmi) if self._around is not None else None
        plan = plan_update(vm, vmi, self._config(), baseline, around)
        return AdmissionResponse(warnings=warnings + plan_warnings(plan, every_step=request.dry_run))

    async def _started_from(self, namespace: str, vmi: dict[str, Any]) -> dict[str, Any] | None:
        name = (vmi.get("status") or {}).get("virtualMachineRevisionName")
        if not name or self._revision is None:
            return None
        revision = await self._revision(namespace, name)
        if revision is None:
            return None
        template = _template({"spec": (revision.get("data") or {}).get("spec")})
        spec = template.get("spec")
        return spec if isinstance(spec, dict) else None

    async def _validate_vmi(self, request: AdmissionRequest, vmi: dict[str, Any]) -> AdmissionResponse:
        if request.old_object is not None and request.user not in names.HOTVIRT_USERS:
            return forbid(
                f"the spec of the running machine {request.name} is Hotvirt's own: edit VirtualMachine "
                f"{request.name}, and what can be done live is done"
            )
        causes = validate_vmi(vmi, self._config())
        if causes:
            return refuse(causes)
        if request.user in names.HOTVIRT_USERS:
            return _ALLOWED
        return AdmissionResponse(warnings=unacted_warning(VMIS.kind, vmi))

    async def _validate_migration(self, request: AdmissionRequest, obj: dict[str, Any]) -> AdmissionResponse:
        return forbid(
            "this release of Hotvirt does not move running machines to other nodes; a resize needs no move: "
            "edit the VirtualMachine, and it is done in place"
        )

    async def _validate_kubevirt(self, request: AdmissionRequest, obj: dict[str, Any]) -> AdmissionResponse:
        causes = validate_kubevirt(obj)
        if causes:
            return refuse(causes)
        warnings = unacted_warning(KUBEVIRTS.kind, obj)
        if (request.namespace, request.name) != (names.NAMESPACE, names.KUBEVIRT_NAME):
            warnings.append(
                f"This object has no effect: Hotvirt reads {names.KUBEVIRT_NAME} "
                f"in namespace {names.NAMESPACE}."
            )
        return AdmissionResponse(warnings=warnings)

    async def _validate_data_volume(
        self, request: AdmissionRequest, obj: dict[str, Any]
    ) -> AdmissionResponse:
        if request.old_object is not None:
            return forbid(
                f"the spec of DataVolume {request.name} cannot be changed: make a new one, or edit its claim"
            )
        causes = validate_data_volume(obj)
        if causes:
            return refuse(causes)
        return AdmissionResponse(warnings=unacted_warning(DATAVOLUMES.kind, obj))


def _applies(rules: tuple[Rule, ...], request: AdmissionRequest) -> bool:
    return any(
        rule.resource.group_resource == request.resource
        and rule.subresource == (request.subresource or "")
        and request.operation in rule.operations
        for rule in rules
    )


def _template(vm: dict[str, Any] | None) -> dict[str, Any]:
    template = ((vm or {}).get("spec") or {}).get("template")
    return template if isinstance(template, dict) else {}
