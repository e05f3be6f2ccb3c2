"""The names that the parts agree on: labels, annotations, finalizers, identities, images."""

from typing import Final

NAMESPACE: Final = "kubevirt"
KUBEVIRT_NAME: Final = "kubevirt"

LAUNCHER_IMAGE: Final = "hotvirt/launcher"
CONTAINER_COMPUTE: Final = "compute"
CONTAINER_CONSOLE_LOG: Final = "guest-console-log"

# Labels
LABEL_LAUNCHER: Final = ("kubevirt.io", "virt-launcher")
LABEL_CREATED_BY: Final = "kubevirt.io/created-by"
LABEL_VM_NAME: Final = "vm.kubevirt.io/name"
LABEL_VMI_ID: Final = "vmi.kubevirt.io/id"
LABEL_NODE_NAME: Final = "kubevirt.io/nodeName"
LABEL_SCHEDULABLE: Final = "kubevirt.io/schedulable"
LABEL_VMI_NAME: Final = "kubevirt.io/vmi-name"
LABEL_OUTDATED_LAUNCHER: Final = "kubevirt.io/outdatedLauncherImage"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
PART_OF: Final = "hotvirt"

# Annotations
ANNOTATION_VM_GENERATION: Final = "kubevirt.io/vm-generation"
ANNOTATION_MEMORY_OVERHEAD: Final = "kubevirt.io/memory-overhead-bytes"
ANNOTATION_MIN_GUEST: Final = "hotvirt.io/min-guest"
ANNOTATION_DOMAIN: Final = "kubevirt.io/domain"
ANNOTATION_DESCHEDULER_EVICT: Final = "descheduler.alpha.kubernetes.io/evict"
ANNOTATION_DESCHEDULER_KEEP: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
# On a Pod: the limits that a quota demanded and Hotvirt set, `cpu`, `memory` or both.
ANNOTATION_LIMITED: Final = "hotvirt.io/limited"
# What of a VMI's metadata reaches the Pod; everything else stays with the VMI.
POD_ANNOTATIONS: Final = (ANNOTATION_DESCHEDULER_EVICT, ANNOTATION_DESCHEDULER_KEEP)

ANNOTATION_CONSOLE_ADDRESS: Final = "hotvirt.io/console-address"
ANNOTATION_CONSOLE_CERTIFICATE: Final = "hotvirt.io/console-certificate"

# Hotvirt's own objects in its namespace on a cluster
CONTROLLER_LEASE: Final = "hotvirt-controller"
NODE_LEASE: Final = "hotvirt-node-{node}"
CERTIFICATES_SECRET: Final = "hotvirt-certificates"
CA_CONFIGMAP: Final = "hotvirt-ca"
API_SERVICE: Final = "hotvirt-api"
WEBHOOKS: Final = "hotvirt"
KVM_RESOURCE: Final = "devices.kubevirt.io/kvm"

# Finalizers
FINALIZER_VM: Final = "kubevirt.io/virtualMachineControllerFinalize"
FINALIZER_VMI: Final = "kubevirt.io/foregroundDeleteVirtualMachine"
FINALIZER_MIGRATION: Final = "kubevirt.io/migrationJobFinalize"

# Identities
CONTROLLER_USER: Final = f"system:serviceaccount:{NAMESPACE}:hotvirt-controller"
NODE_USER: Final = f"system:serviceaccount:{NAMESPACE}:hotvirt-node"
API_USER: Final = f"system:serviceaccount:{NAMESPACE}:hotvirt-api"
HOTVIRT_USERS: Final = frozenset({CONTROLLER_USER, NODE_USER, API_USER})
MASTERS_GROUP: Final = "system:masters"

# Feature gates of Hotvirt
GATE_IN_PLACE_HOTPLUG: Final = "InPlaceHotplug"
GATE_HOTPLUG_VOLUMES: Final = "HotplugVolumes"
GATE_INJECT_EJECT_CDROM: Final = "InjectEjectCDROM"
