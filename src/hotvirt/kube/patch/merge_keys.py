"""Which lists of the built-in kinds a strategic merge patch merges, and by which key.

A field's entry is the name of the type it holds; `[key]Type` is a list merged by `key`; `[]` a list of plain
values merged as a set. Lists that are not here are replaced whole. The table says what Kubernetes' types
say in their patchStrategy tags.
"""

from __future__ import annotations

TYPES: dict[str, dict[str, str]] = {
    "ObjectMeta": {"finalizers": "[]", "ownerReferences": "[uid]OwnerReference"},
    "Pod": {"metadata": "ObjectMeta", "spec": "PodSpec", "status": "PodStatus"},
    "PodSpec": {
        "containers": "[name]Container",
        "initContainers": "[name]Container",
        "ephemeralContainers": "[name]Container",
        "volumes": "[name]Volume",
        "imagePullSecrets": "[name]LocalObjectReference",
        "hostAliases": "[ip]HostAlias",
        "topologySpreadConstraints": "[topologyKey]TopologySpreadConstraint",
        "schedulingGates": "[name]PodSchedulingGate",
        "resourceClaims": "[name]PodResourceClaim",
    },
    "Container": {
        "env": "[name]EnvVar",
        "ports": "[containerPort]ContainerPort",
        "volumeMounts": "[mountPath]VolumeMount",
        "volumeDevices": "[devicePath]VolumeDevice",
    },
    "PodStatus": {
        "conditions": "[type]PodCondition",
        "podIPs": "[ip]PodIP",
        "hostIPs": "[ip]HostIP",
        "resourceClaimStatuses": "[name]PodResourceClaimStatus",
    },
    "Node": {"metadata": "ObjectMeta", "spec": "NodeSpec", "status": "NodeStatus"},
    "NodeSpec": {"podCIDRs": "[]"},
    "NodeStatus": {"addresses": "[type]NodeAddress", "conditions": "[type]NodeCondition"},
    "Namespace": {"metadata": "ObjectMeta", "status": "NamespaceStatus"},
    "NamespaceStatus": {"conditions": "[type]NamespaceCondition"},
    "PersistentVolumeClaim": {"metadata": "ObjectMeta", "status": "PersistentVolumeClaimStatus"},
    "PersistentVolumeClaimStatus": {"conditions": "[type]PersistentVolumeClaimCondition"},
    "ServiceAccount": {
        "metadata": "ObjectMeta",
        "secrets": "[name]ObjectReference",
        "imagePullSecrets": "[name]LocalObjectReference",
    },
}
FOR_ANY_KIND = {"metadata": "ObjectMeta"}


def fields_of(type_name: str) -> dict[str, str]:
    return TYPES.get(type_name, {})


def fields_of_kind(kind: str) -> dict[str, str]:
    return TYPES.get(kind, FOR_ANY_KIND)
