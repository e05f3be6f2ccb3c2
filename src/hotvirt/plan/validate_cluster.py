"""What is refused of the `KubeVirt` object: settings that cannot mean anything."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hotvirt.api import codec
from hotvirt.api.cluster import KubeVirt
from hotvirt.api.quantity import Quantity
from hotvirt.plan.causes import Cause, Causes, type_error
from hotvirt.plan.config import parse_overhead_ratio

MOST_OVERCOMMIT: Final = 10_000
LEAST_OVERCOMMIT: Final = 10
WORKLOAD_UPDATE_METHODS: Final = ("LiveMigrate", "Evict")


def validate_kubevirt(kubevirt: dict[str, Any]) -> list[Cause]:
    """Every cause why these settings cannot be used; none when they can."""
    try:
        typed = codec.convert(kubevirt, KubeVirt)
    except msgspec.ValidationError as error:
        return [type_error(error)]
    causes = Causes()
    configuration = typed.spec.configuration
    here = "spec.configuration"
    causes.one_of(f"{here}.vmRolloutStrategy", configuration.vm_rollout_strategy, ("LiveUpdate", "Stage"))
    _check_live_update(causes, typed, f"{here}.liveUpdateConfiguration")
    _check_developer(causes, typed, f"{here}.developerConfiguration")
    if configuration.cpu_request is not None and configuration.cpu_request <= Quantity(0):
        causes.invalid(
            f"{here}.cpuRequest", f"{configuration.cpu_request} is not a request, write one like 100m"
        )
    ratio = configuration.additional_guest_memory_overhead_ratio
    if ratio and parse_overhead_ratio(ratio) is None:
        causes.invalid(
            f"{here}.additionalGuestMemoryOverheadRatio", f"{ratio!r} is not a number of at least 1"
        )
    for index, method in enumerate(typed.spec.workload_update_strategy.workload_update_methods):
        field = f"spec.workloadUpdateStrategy.workloadUpdateMethods[{index}]"
        causes.one_of(field, method, WORKLOAD_UPDATE_METHODS)
    return causes.found


def _check_live_update(causes: Causes, kubevirt: KubeVirt, here: str) -> None:
    live = kubevirt.spec.configuration.live_update_configuration
    if live is None:
        return
    if live.max_cpu_sockets is not None and live.max_cpu_sockets < 1:
        causes.invalid(f"{here}.maxCpuSockets", f"{live.max_cpu_sockets} is too few: it must be at least 1")
    if live.max_hotplug_ratio < 0:
        causes.invalid(
            f"{here}.maxHotplugRatio", f"{live.max_hotplug_ratio} is negative; 1 means no headroom"
        )
    if live.max_guest is not None and live.max_guest <= Quantity(0):
        causes.invalid(f"{here}.maxGuest", f"{live.max_guest} is not a size, write one like 8Gi")


def _check_developer(causes: Causes, kubevirt: KubeVirt, here: str) -> None:
    developer = kubevirt.spec.configuration.developer_configuration
    if developer is None:
        return
    if developer.cpu_allocation_ratio < 0:
        causes.invalid(f"{here}.cpuAllocationRatio", f"{developer.cpu_allocation_ratio} is negative")
    overcommit = developer.memory_overcommit
    if overcommit and not LEAST_OVERCOMMIT <= overcommit <= MOST_OVERCOMMIT:
        causes.invalid(
            f"{here}.memoryOvercommit",
            f"{overcommit} percent is not between {LEAST_OVERCOMMIT} and {MOST_OVERCOMMIT}",
        )
    for gate in developer.feature_gates:
        if gate in developer.disabled_feature_gates:
            causes.forbidden(
                f"{here}.disabledFeatureGates", f"{gate} is in featureGates too: keep one of them"
            )
