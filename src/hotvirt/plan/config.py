"""The cluster's settings, with every default in one place.

They come from the `KubeVirt` object. A gate of Hotvirt's own is on unless it is switched off: a patch
that sets `featureGates` to a list of KubeVirt's names switches nothing off.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, Literal

from hotvirt.api import names
from hotvirt.api.cluster import KubeVirt
from hotvirt.api.quantity import Quantity

Strategy = Literal["LiveUpdate", "Stage"]

DEFAULT_RATIO: Final = 4
DEFAULT_CPU_ALLOCATION_RATIO: Final = 10
DEFAULT_MEMORY_OVERCOMMIT: Final = 100
# KubeVirt's own default for cpuRequest; written down or not, it means "by ratio".
CPU_REQUEST_BY_RATIO: Final = Quantity("100m")

ON_BY_DEFAULT: Final = frozenset(
    {names.GATE_IN_PLACE_HOTPLUG, names.GATE_HOTPLUG_VOLUMES, names.GATE_INJECT_EJECT_CDROM}
)
# KubeVirt's name for what is one gate here.
_SAME_GATE: Final = {"DeclarativeHotplugVolumes": names.GATE_HOTPLUG_VOLUMES}


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What the cluster's admin decided, or the defaults."""

    rollout_strategy: Strategy = "LiveUpdate"
    max_sockets: int | None = None
    max_guest: Quantity | None = None
    max_hotplug_ratio: int = DEFAULT_RATIO
    cpu_allocation_ratio: int = DEFAULT_CPU_ALLOCATION_RATIO
    memory_overcommit: int = DEFAULT_MEMORY_OVERCOMMIT
    cpu_request: Quantity | None = None
    overhead_ratio: Decimal = Decimal(1)
    image_pull_policy: str = "IfNotPresent"
    use_emulation: bool = False
    workload_update_methods: tuple[str, ...] = ()
    enabled_gates: frozenset[str] = frozenset()
    disabled_gates: frozenset[str] = frozenset()

    def gate(self, name: str) -> bool:
        """Whether a feature gate is on. Naming it in featureGates wins over disabledFeatureGates."""
        gate = _SAME_GATE.get(name, name)
        if gate in self.enabled_gates:
            return True
        return gate in ON_BY_DEFAULT and gate not in self.disabled_gates

    @property
    def stages(self) -> bool:
        """Whether every change waits for a restart."""
        return self.rollout_strategy == "Stage"


def cluster_config(kubevirt: KubeVirt | None) -> ClusterConfig:
    """The settings of a cluster; without a KubeVirt object, the defaults. A zero means "not set"."""
    if kubevirt is None:
        return ClusterConfig()
    spec = kubevirt.spec
    configuration = spec.configuration
    live = configuration.live_update_configuration
    developer = configuration.developer_configuration
    return ClusterConfig(
        rollout_strategy="Stage" if configuration.vm_rollout_strategy == "Stage" else "LiveUpdate",
        max_sockets=(live.max_cpu_sockets or None) if live else None,
        max_guest=(live.max_guest or None) if live else None,
        max_hotplug_ratio=(live.max_hotplug_ratio if live else 0) or DEFAULT_RATIO,
        cpu_allocation_ratio=(developer.cpu_allocation_ratio if developer else 0)
        or DEFAULT_CPU_ALLOCATION_RATIO,
        memory_overcommit=(developer.memory_overcommit if developer else 0) or DEFAULT_MEMORY_OVERCOMMIT,
        cpu_request=_cpu_request(configuration.cpu_request),
        overhead_ratio=_ratio(configuration.additional_guest_memory_overhead_ratio),
        image_pull_policy=configuration.image_pull_policy or spec.image_pull_policy or "IfNotPresent",
        use_emulation=bool(developer and developer.use_emulation),
        workload_update_methods=spec.workload_update_strategy.workload_update_methods,
        enabled_gates=_gates(developer.feature_gates if developer else ()),
        disabled_gates=_gates(developer.disabled_feature_gates if developer else ()),
    )


def parse_overhead_ratio(text: str) -> Decimal | None:
    """The ratio, or None when it is not a number of at least 1."""
    try:
        ratio = Decimal(text)
    except InvalidOperation:
        return None
    return ratio if ratio.is_finite() and ratio >= 1 else None


def _cpu_request(given: Quantity | None) -> Quantity | None:
    return given if given and given != CPU_REQUEST_BY_RATIO else None


def _ratio(text: str | None) -> Decimal:
    return (parse_overhead_ratio(text) if text else None) or Decimal(1)


def _gates(given: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_SAME_GATE.get(gate, gate) for gate in given)
