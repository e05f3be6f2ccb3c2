"""The ``KubeVirt`` object: the settings of a cluster, and what runs there."""

from __future__ import annotations

from hotvirt.api.conditions import Condition
from hotvirt.api.meta import Kind, Struct
from hotvirt.api.quantity import Quantity


class LiveUpdateConfiguration(Struct, frozen=True):
    max_cpu_sockets: int | None = None
    max_guest: Quantity | None = None
    max_hotplug_ratio: int = 0


class DeveloperConfiguration(Struct, frozen=True):
    feature_gates: tuple[str, ...] = ()
    disabled_feature_gates: tuple[str, ...] = ()
    cpu_allocation_ratio: int = 0
    memory_overcommit: int = 0
    use_emulation: bool = False


class KubeVirtConfiguration(Struct, frozen=True):
    vm_rollout_strategy: str | None = None
    live_update_configuration: LiveUpdateConfiguration | None = None
    developer_configuration: DeveloperConfiguration | None = None
    cpu_request: Quantity | None = None
    additional_guest_memory_overhead_ratio: str | None = None
    image_pull_policy: str = ""


class WorkloadUpdateStrategy(Struct, frozen=True):
    workload_update_methods: tuple[str, ...] = ()
    batch_eviction_size: int | None = None
    batch_eviction_interval: str | None = None


class KubeVirtSpec(Struct, frozen=True):
    configuration: KubeVirtConfiguration = KubeVirtConfiguration()
    workload_update_strategy: WorkloadUpdateStrategy = WorkloadUpdateStrategy()
    image_pull_policy: str = ""


class KubeVirtStatus(Struct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    observed_generation: int | None = None
    operator_version: str = ""
    observed_kube_virt_version: str = ""
    target_kube_virt_version: str = ""
    outdated_virtual_machine_instance_workloads: int | None = None
    default_architecture: str = ""


class KubeVirt(Kind, frozen=True):
    api_version: str = "kubevirt.io/v1"
    kind: str = "KubeVirt"
    spec: KubeVirtSpec = KubeVirtSpec()
    status: KubeVirtStatus = KubeVirtStatus()
