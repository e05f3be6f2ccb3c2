"""What is refused at admission: everything that no restart could make work, with every cause by its field."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance, VMISpec
from hotvirt.plan.causes import Cause, Causes, type_error
from hotvirt.plan.check_devices import check_boot_order, check_disks, check_networks, check_volumes
from hotvirt.plan.check_machine import (
    ARCHITECTURES,
    check_alignment,
    check_cpu,
    check_firmware,
    check_machine_type,
    check_memory,
    check_min_guest,
    check_resources,
)
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import alignment, guest_memory
from hotvirt.plan.runstrategy import FINAL_PHASES
from hotvirt.plan.validate_storage import check_data_volume_spec

__all__ = ["Cause", "validate_vm", "validate_vmi"]

RUN_STRATEGIES: Final = ("Always", "RerunOnFailure", "Manual", "Halted", "Once")


def validate_vm(vm: dict[str, Any], config: ClusterConfig, old: dict[str, Any] | None = None) -> list[Cause]:
    """Every cause why this VM cannot work; none when it can. `old` is the VM before an edit."""
    try:
        typed = codec.convert(vm, VirtualMachine)
    except msgspec.ValidationError as error:
        return [type_error(error)]
    raw = codec.without_nulls(vm.get("spec") or {})
    causes = Causes()
    _check_run_strategy(causes, typed)
    _check_matchers(causes, typed)
    if "template" not in raw:
        causes.required("spec.template", "a virtual machine needs a template")
        return causes.found
    template = raw["template"]
    instancetype = typed.spec.instancetype
    _check_spec(
        causes,
        template.get("spec") or {},
        typed.spec.template.spec,
        "spec.template.spec",
        instancetype.name if instancetype else None,
    )
    _check_annotations(
        causes, typed.spec.template.metadata.annotations, typed.spec.template.spec, "spec.template."
    )
    _check_templates(causes, raw, typed)
    return causes.found


def validate_edit(vm: dict[str, Any], vmi: dict[str, Any]) -> list[Cause]:
    """Why a VM that is fine by itself cannot be what its running machine becomes.

    A new memory size must be one that a running machine can have; the size it has already always is.
    """
    causes = Causes()
    wanted, runs = (
        codec.convert(vm, VirtualMachine).spec.template.spec,
        codec.convert(vmi, VirtualMachineInstance),
    )
    if runs.metadata.deleting or runs.status.phase in FINAL_PHASES:
        return []
    guest = guest_memory(wanted)
    if guest != guest_memory(runs.spec):
        check_alignment(causes, "spec.template.spec.domain.memory.guest", guest, alignment(wanted))
    return causes.found


def validate_vmi(vmi: dict[str, Any], config: ClusterConfig) -> list[Cause]:
    """Every cause why this VMI cannot work; none when it can."""
    try:
        typed = codec.convert(vmi, VirtualMachineInstance)
    except msgspec.ValidationError as error:
        return [type_error(error)]
    causes = Causes()
    _check_spec(causes, codec.without_nulls(vmi.get("spec") or {}), typed.spec, "spec")
    _check_annotations(causes, typed.metadata.annotations, typed.spec, "")
    return causes.found


def _check_run_strategy(causes: Causes, vm: VirtualMachine) -> None:
    strategy, running = vm.spec.run_strategy, vm.spec.running
    if strategy is None and running is None:
        causes.required("spec.runStrategy", f"set one of {', '.join(RUN_STRATEGIES)}")
    elif strategy is not None and running is not None:
        causes.forbidden("spec.running", "runStrategy and running exclude each other: set runStrategy alone")
    if strategy == "WaitAsReceiver":
        causes.unsupported("spec.runStrategy", "Hotvirt does not receive machines from other clusters")
    elif strategy is not None and strategy not in RUN_STRATEGIES:
        causes.unsupported("spec.runStrategy", f"{strategy!r} is not known: use {', '.join(RUN_STRATEGIES)}")
    causes.one_of("spec.updateVolumesStrategy", vm.spec.update_volumes_strategy, ("Replacement", "Migration"))


def _check_matchers(causes: Causes, vm: VirtualMachine) -> None:
    for field, matcher in (("instancetype", vm.spec.instancetype), ("preference", vm.spec.preference)):
        if matcher is not None and not matcher.name and not matcher.infer_from_volume:
            causes.required(f"spec.{field}.name", f"name the {field}, or leave {field} out")


def _check_spec(
    causes: Causes, raw: dict[str, Any], spec: VMISpec, path: str, instancetype: str | None = None
) -> None:
    domain = f"{path}.domain"
    check_cpu(causes, raw.get("domain") or {}, spec.domain, domain)
    check_memory(causes, spec, domain, instancetype)
    check_resources(causes, spec, domain)
    check_firmware(causes, spec.domain.firmware, domain)
    check_machine_type(causes, spec.domain, spec.architecture, domain)
    check_disks(causes, raw, spec, path)
    check_boot_order(causes, spec, path)
    check_volumes(causes, raw, spec, path)
    check_networks(causes, raw, spec, path)
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        causes.invalid(f"{path}.terminationGracePeriodSeconds", f"{grace} is negative")
    for name, value in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if value:
            causes.label(f"{path}.{name}", value)
    causes.one_of(f"{path}.startStrategy", spec.start_strategy, ("Paused",))
    causes.one_of(f"{path}.architecture", spec.architecture, ARCHITECTURES)


def _check_annotations(causes: Causes, annotations: dict[str, str], spec: VMISpec, prefix: str) -> None:
    least = annotations.get(names.ANNOTATION_MIN_GUEST)
    if least is not None:
        check_min_guest(causes, least, spec, f"{prefix}metadata.annotations[{names.ANNOTATION_MIN_GUEST}]")
        if not (spec.domain.memory and spec.domain.memory.max_guest):
            check_alignment(causes, f"{prefix}spec.domain.memory.guest", guest_memory(spec), alignment(spec))


def _check_templates(causes: Causes, raw: dict[str, Any], vm: VirtualMachine) -> None:
    """The DataVolumes that the VM makes: named, once, and used."""
    used = {volume.claim_name for volume in vm.spec.template.spec.volumes}
    seen: set[str] = set()
    for index, template in enumerate(vm.spec.data_volume_templates):
        here = f"spec.dataVolumeTemplates[{index}]"
        name = str(template.metadata.get("name") or "")
        if not name:
            causes.required(f"{here}.metadata.name", "a DataVolume needs a name")
        elif name in seen:
            causes.duplicate(f"{here}.metadata.name", f"there is another DataVolume template {name!r}")
        elif name not in used:
            causes.invalid(f"{here}.metadata.name", f"no volume uses {name!r}: add one with dataVolume.name")
        seen.add(name)
        written = raw["dataVolumeTemplates"][index] or {}
        check_data_volume_spec(causes, written.get("spec") or {}, template.spec, f"{here}.spec")
