"""The resources of the API: their names, and where they live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one group version."""

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """The name used in messages and RBAC: ``virtualmachines.kubevirt.io``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection, of one object or of its subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
            if subresource:
                parts.append(subresource)
        return "/" + "/".join(parts)


def _kubevirt(kind: str, short: tuple[str, ...], categories: tuple[str, ...] = ("all",)) -> Resource:
    lower = kind.lower()
    return Resource("kubevirt.io", "v1", f"{lower}s", lower, kind, True, short, categories)


VMS: Final = _kubevirt("VirtualMachine", ("vm", "vms"))
VMIS: Final = _kubevirt("VirtualMachineInstance", ("vmi", "vmis"))
VMIMS: Final = _kubevirt("VirtualMachineInstanceMigration", ("vmim", "vmims"))
KUBEVIRTS: Final = _kubevirt("KubeVirt", ("kv", "kvs"))
DATAVOLUMES: Final = Resource(
    "cdi.kubevirt.io", "v1beta1", "datavolumes", "datavolume", "DataVolume", True, ("dv", "dvs"), ("all",)
)

PODS: Final = Resource("", "v1", "pods", "pod", "Pod", True, ("po",), ("all",))
NODES: Final = Resource("", "v1", "nodes", "node", "Node", False, ("no",))
NAMESPACES: Final = Resource("", "v1", "namespaces", "namespace", "Namespace", False, ("ns",))
EVENTS: Final = Resource("", "v1", "events", "event", "Event", True, ("ev",))
SECRETS: Final = Resource("", "v1", "secrets", "secret", "Secret")
CONFIGMAPS: Final = Resource("", "v1", "configmaps", "configmap", "ConfigMap", True, ("cm",))
SERVICEACCOUNTS: Final = Resource(
    "", "v1", "serviceaccounts", "serviceaccount", "ServiceAccount", True, ("sa",)
)
RESOURCEQUOTAS: Final = Resource(
    "", "v1", "resourcequotas", "resourcequota", "ResourceQuota", True, ("quota",)
)
LIMITRANGES: Final = Resource("", "v1", "limitranges", "limitrange", "LimitRange", True, ("limits",))
PVCS: Final = Resource(
    "", "v1", "persistentvolumeclaims", "persistentvolumeclaim", "PersistentVolumeClaim", True, ("pvc",)
)
PVS: Final = Resource("", "v1", "persistentvolumes", "persistentvolume", "PersistentVolume", False, ("pv",))
STORAGECLASSES: Final = Resource(
    "storage.k8s.io", "v1", "storageclasses", "storageclass", "StorageClass", False, ("sc",)
)
CONTROLLERREVISIONS: Final = Resource(
    "apps", "v1", "controllerrevisions", "controllerrevision", "ControllerRevision"
)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "lease", "Lease")
PRIORITYCLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "priorityclass", "PriorityClass", False, ("pc",)
)
CRDS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "customresourcedefinition",
    "CustomResourceDefinition",
    False,
    ("crd", "crds"),
    ("api-extensions",),
)
# What Hotvirt meets on a cluster only
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "deployment", "Deployment", True, ("deploy",))
MUTATINGWEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "mutatingwebhookconfiguration",
    "MutatingWebhookConfiguration",
    False,
)
VALIDATINGWEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "validatingwebhookconfiguration",
    "ValidatingWebhookConfiguration",
    False,
)
APISERVICES: Final = Resource(
    "apiregistration.k8s.io", "v1", "apiservices", "apiservice", "APIService", False
)
SUBJECTACCESSREVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview", False
)

CUSTOM: Final = (VMS, VMIS, VMIMS, KUBEVIRTS, DATAVOLUMES)
ALL: Final = (
    *CUSTOM,
    PODS,
    NODES,
    NAMESPACES,
    EVENTS,
    SECRETS,
    CONFIGMAPS,
    SERVICEACCOUNTS,
    RESOURCEQUOTAS,
    LIMITRANGES,
    PVCS,
    PVS,
    STORAGECLASSES,
    CONTROLLERREVISIONS,
    LEASES,
    PRIORITYCLASSES,
    CRDS,
)
