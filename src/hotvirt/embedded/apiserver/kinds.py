"""Which resources the API has: the built-in ones, and those that CRDs add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .schema import Node
from .types import Struct, object_fields

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
REVIEW_VERBS: Final = ("create",)

Convert = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Subresource:
    """What can be asked of one object beside itself; its kind may be another one."""

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    group: str = ""
    version: str = ""


@dataclass(frozen=True)
class Scale:
    """Where a custom resource keeps its replicas."""

    spec: str
    status: str
    selector: str = ""


@dataclass(frozen=True, eq=False)
class Kind:
    """One resource in one version, as the API serves it."""

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: dict[str, Subresource] = field(default_factory=dict)
    struct: Struct | None = None
    """The fields of a built-in type."""
    schema: Node | None = None
    """The schema of a custom resource, compiled; `openapi` is what it was compiled from."""
    openapi: dict[str, Any] | None = None
    columns: tuple[dict[str, Any], ...] | None = None
    """The printer columns of a custom resource."""
    scale: Scale | None = None
    list_kind: str = ""
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Field selectors beside metadata.name and metadata.namespace: label to path."""
    stored: str = ""
    """The key of the store; two versions of one resource share it."""
    storage_version: str = ""
    to_stored: Convert | None = None
    from_stored: Convert | None = None
    deprecation: str = ""
    """A sentence that is sent as a warning with every answer."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def store_key(self) -> str:
        return self.stored or self.group_resource

    @property
    def custom(self) -> bool:
        return self.schema is not None

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    @property
    def list_name(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def persistent(self) -> bool:
        return "get" in self.verbs


STATUS: Final = Subresource("status", ("get", "patch", "update"))
EVENT_FIELDS: Final = {
    f"involvedObject.{name}": ("involvedObject", name)
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
} | {
    "reason": ("reason",),
    "type": ("type",),
    "source": ("source", "component"),
    "reportingComponent": ("reportingComponent",),
}
POD_FIELDS: Final = {
    f"{top}.{name}": (top, name)
    for top, name in (
        ("spec", "nodeName"),
        ("spec", "restartPolicy"),
        ("spec", "schedulerName"),
        ("spec", "serviceAccountName"),
        ("spec", "hostNetwork"),
        ("status", "phase"),
        ("status", "podIP"),
        ("status", "podIPs"),
        ("status", "nominatedNodeName"),
    )
}


def _named(*subresources: Subresource) -> dict[str, Subresource]:
    return {one.name: one for one in subresources}


def _core(plural: str, kind: str, short: tuple[str, ...] = (), **more: Any) -> Kind:
    return _of("", "v1", "core", plural, kind, short, **more)


def _of(
    group: str, version: str, table: str, plural: str, kind: str, short: tuple[str, ...] = (), **more: Any
) -> Kind:
    return Kind(
        group,
        version,
        plural,
        kind.lower(),
        kind,
        short_names=short,
        struct=object_fields(f"{table}.{kind}"),
        **more,
    )


def _review(group: str, table: str, plural: str, kind: str, namespaced: bool = False) -> Kind:
    return _of(group, "v1", table, plural, kind, namespaced=namespaced, verbs=REVIEW_VERBS)


def builtin_kinds() -> list[Kind]:
    from .events import from_core, to_core  # the one built-in resource with two faces

    authorization, authentication = "authorization.k8s.io", "authentication.k8s.io"
    rbac = "rbac.authorization.k8s.io"
    get_update = ("get", "patch", "update")
    return [
        _core("configmaps", "ConfigMap", ("cm",)),
        _core("events", "Event", ("ev",), fields=EVENT_FIELDS),
        _core("limitranges", "LimitRange", ("limits",)),
        _core(
            "namespaces",
            "Namespace",
            ("ns",),
            namespaced=False,
            verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
            subresources=_named(Subresource("finalize", ("update",)), STATUS),
            fields={"status.phase": ("status", "phase")},
        ),
        _core(
            "nodes",
            "Node",
            ("no",),
            namespaced=False,
            subresources=_named(STATUS),
            fields={"spec.unschedulable": ("spec", "unschedulable")},
        ),
        _core("persistentvolumeclaims", "PersistentVolumeClaim", ("pvc",), subresources=_named(STATUS)),
        _core(
            "persistentvolumes", "PersistentVolume", ("pv",), namespaced=False, subresources=_named(STATUS)
        ),
        _core(
            "pods",
            "Pod",
            ("po",),
            categories=("all",),
            fields=POD_FIELDS,
            subresources=_named(
                Subresource("attach", ("create", "get"), "PodAttachOptions"),
                Subresource("binding", ("create",), "Binding"),
                Subresource("eviction", ("create",), "Eviction", "policy", "v1"),
                Subresource("exec", ("create", "get"), "PodExecOptions"),
                Subresource("log", ("get",)),
                Subresource("portforward", ("create", "get"), "PodPortForwardOptions"),
                Subresource("resize", get_update),
                STATUS,
            ),
        ),
        _core("resourcequotas", "ResourceQuota", ("quota",), subresources=_named(STATUS)),
        _core("secrets", "Secret", fields={"type": ("type",)}),
        _core(
            "serviceaccounts",
            "ServiceAccount",
            ("sa",),
            subresources=_named(
                Subresource("token", ("create",), "TokenRequest", "authentication.k8s.io", "v1")
            ),
        ),
        _core("services", "Service", ("svc",), categories=("all",), subresources=_named(STATUS)),
        _of("apps", "v1", "apps", "controllerrevisions", "ControllerRevision"),
        _of("coordination.k8s.io", "v1", "coordination", "leases", "Lease"),
        _of(
            "events.k8s.io",
            "v1",
            "events",
            "events",
            "Event",
            ("ev",),
            stored="events",
            to_stored=to_core,
            from_stored=from_core,
            fields={
                f"regarding.{name.removeprefix('involvedObject.')}": path
                for name, path in EVENT_FIELDS.items()
                if name.startswith("involvedObject.")
            }
            | {"reason": ("reason",), "type": ("type",), "reportingController": ("reportingComponent",)},
        ),
        _of(
            "policy",
            "v1",
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            ("pdb",),
            subresources=_named(STATUS),
        ),
        _of(rbac, "v1", "rbac", "clusterroles", "ClusterRole", namespaced=False),
        _of(rbac, "v1", "rbac", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        _of(rbac, "v1", "rbac", "roles", "Role"),
        _of(rbac, "v1", "rbac", "rolebindings", "RoleBinding"),
        _of(
            "scheduling.k8s.io",
            "v1",
            "scheduling",
            "priorityclasses",
            "PriorityClass",
            ("pc",),
            namespaced=False,
        ),
        _of("storage.k8s.io", "v1", "storage", "storageclasses", "StorageClass", ("sc",), namespaced=False),
        _of(
            "apiextensions.k8s.io",
            "v1",
            "apiextensions",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            ("crd", "crds"),
            namespaced=False,
            categories=("api-extensions",),
            subresources=_named(STATUS),
        ),
        _review(authorization, "authorization", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        _review(authorization, "authorization", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        _review(authorization, "authorization", "subjectaccessreviews", "SubjectAccessReview"),
        _review(authentication, "authentication", "selfsubjectreviews", "SelfSubjectReview"),
        _review(authentication, "authentication", "tokenreviews", "TokenReview"),
    ]


class Registry:
    """The resources that are served now. Groups keep their order in discovery."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self.generation = 0
        """Changes whenever a resource comes or goes, so that documents made from it can be kept."""
        for kind in builtin_kinds():
            self.add(kind)

    def add(self, kind: Kind) -> None:
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self.generation += 1

    def remove(self, kind: Kind) -> None:
        if self._kinds.pop((kind.group, kind.version, kind.plural), None):
            self.generation += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._kinds.get((group, version, plural))

    def is_builtin(self, group: str, version: str) -> bool:
        return any(
            kind.group == group and kind.version == version and not kind.custom
            for kind in self._kinds.values()
        )

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def groups(self) -> dict[str, dict[str, list[Kind]]]:
        """group → version → kinds; the core group is ""."""
        groups: dict[str, dict[str, list[Kind]]] = {}
        for kind in self._kinds.values():
            groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
        return groups
