"""The columns of the built-in kinds, as `kubectl get` has always shown them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hotvirt.api.quantity import Quantity

from .kinds import Kind
from .pod_column import pod_cells
from .tables import AGE_COLUMN, NAME_COLUMN, Cells, Columns, Object, age, column, object_age

_MODES: Final = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_ROLE_LABEL: Final = "node-role.kubernetes.io/"


def _heads(*names: str) -> list[Object]:
    """Column names; `*` marks those of `-o wide`, `#` whole numbers, `?` booleans, `@` dates."""
    made = []
    for name in names:
        if name == "Name":
            made.append(NAME_COLUMN)
        elif name == "Age":
            made.append(AGE_COLUMN)
        else:
            type_ = (
                "integer"
                if "#" in name
                else "boolean"
                if "?" in name
                else "date"
                if "@" in name
                else "string"
            )
            made.append(column(name.strip("*#?@"), type_, 1 if "*" in name else 0))
    return made


def _spec(obj: Object) -> Object:
    return obj.get("spec") or {}


def _status(obj: Object) -> Object:
    return obj.get("status") or {}


def _name(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _modes(modes: list[str] | None) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in dict.fromkeys(modes or []))


def _size(amounts: Object | None, name: str = "storage") -> str:
    amount = (amounts or {}).get(name)
    return str(Quantity(str(amount))) if amount is not None else "0"


def _phase(obj: Object) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(_status(obj).get("phase", ""))


def _node(obj: Object) -> list[Any]:
    info = _status(obj).get("nodeInfo") or {}
    states = [
        "Ready" if one.get("status") == "True" else "NotReady"
        for one in _status(obj).get("conditions") or []
        if one.get("type") == "Ready"
    ] or ["Unknown"]
    if _spec(obj).get("unschedulable"):
        states.append("SchedulingDisabled")
    labels = obj["metadata"].get("labels") or {}
    roles = sorted(
        {key.removeprefix(_ROLE_LABEL) for key in labels if key.startswith(_ROLE_LABEL)} - {""}
        | {labels[key] for key in ("kubernetes.io/role",) if labels.get(key)}
    )
    addresses = {one.get("type"): one.get("address") for one in _status(obj).get("addresses") or []}
    kernel = info.get("kernelVersion") or "<unknown>"
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        _name(obj),
        ",".join(states),
        ",".join(roles) or "<none>",
        object_age(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        kernel,
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(obj: Object) -> list[Any]:
    first = age(obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime"))
    last_seen = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    last = age(last_seen) if last_seen else first
    count = obj.get("count") or obj.get("deprecatedCount") or 1
    if series := obj.get("series"):
        last, count = age(series.get("lastObservedTime")), series.get("count") or count
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    target = str(about.get("kind", "")).lower()
    if about.get("name"):
        target += f"/{about['name']}"
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    where = [
        source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or "",
        source.get("host") or obj.get("reportingInstance") or "",
    ]
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        ", ".join(part for part in where if part),
        (obj.get("message") or obj.get("note") or "").strip(),
        first,
        count,
        _name(obj),
    ]


def _claim(obj: Object) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    bound = spec.get("volumeName", "")
    return [
        _name(obj),
        _phase(obj),
        bound,
        _size(status.get("capacity")) if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"),
        object_age(obj),
        spec.get("volumeMode", "<unset>"),
    ]


def _volume(obj: Object) -> list[Any]:
    spec = _spec(obj)
    claim = spec.get("claimRef")
    return [
        _name(obj),
        _size(spec.get("capacity")),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _phase(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"),
        _status(obj).get("reason", ""),
        object_age(obj),
        spec.get("volumeMode", "<unset>"),
    ]


def _quota(obj: Object) -> list[Any]:
    status = _status(obj)
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(status.get("hard") or {}):
        shown = f"{name}: {_size(status.get('used'), name)}/{_size(status['hard'], name)}"
        (limits if name.startswith("limits.") else requests).append(shown)
    return [_name(obj), ", ".join(requests), ", ".join(limits), object_age(obj)]


def _storage_class(obj: Object) -> list[Any]:
    annotations = obj["metadata"].get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        _name(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion", False)),
        object_age(obj),
    ]


def _revision(obj: Object) -> list[Any]:
    controller = "<none>"
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            kind = owner["kind"].lower() + (f".{group}" if group else "")
            controller = f"{kind}/{owner['name']}"
    return [_name(obj), controller, obj.get("revision", 0), object_age(obj)]


def _service(obj: Object) -> list[Any]:
    spec = _spec(obj)
    ports = []
    for port in spec.get("ports") or []:
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    external = {"ExternalName": spec.get("externalName", ""), "LoadBalancer": "<pending>"}
    return [
        _name(obj),
        spec.get("type", "ClusterIP"),
        (spec.get("clusterIPs") or ["<none>"])[0],
        ",".join(spec.get("externalIPs") or []) or external.get(spec.get("type", ""), "<none>"),
        ",".join(ports) or "<none>",
        object_age(obj),
        ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items())) or "<none>",
    ]


def _budget(obj: Object) -> list[Any]:
    spec = _spec(obj)
    return [
        _name(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        _status(obj).get("disruptionsAllowed", 0),
        object_age(obj),
    ]


def _binding(obj: Object) -> list[Any]:
    role = obj.get("roleRef") or {}
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in obj.get("subjects") or []:
        name = subject.get("name", "")
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace', '')}/{name}"
        by_kind.setdefault(subject.get("kind", ""), []).append(name)
    return [
        _name(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        object_age(obj),
        *(", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")),
    ]


def _definition(obj: Object) -> list[Any]:
    spec = _spec(obj)
    versions = sorted(
        one["name"] + ("(storage)" if one.get("storage") else "")
        for one in spec.get("versions") or []
        if one.get("served")
    )
    conditions = {one.get("type"): one.get("status") for one in _status(obj).get("conditions") or []}
    names = spec.get("names") or {}
    return [
        _name(obj),
        spec.get("scope", ""),
        ",".join(versions),
        obj["metadata"].get("creationTimestamp"),
        spec.get("group", ""),
        names.get("kind", ""),
        ",".join(names.get("shortNames") or []),
        conditions.get("Established") == "True",
    ]


def _count(*fields: str) -> Callable[[Object], int]:
    return lambda obj: sum(len(obj.get(field) or {}) for field in fields)


_data = _count("data", "binaryData")
_MADE: Final = ("Name", "Created At")

BUILTIN: Final[dict[str, tuple[tuple[str, ...], Cells]]] = {
    "pods": (
        ("Name", "Ready", "Status", "Restarts", "Age", "IP*", "Node*", "Nominated Node*", "Readiness Gates*"),
        pod_cells,
    ),
    "nodes": (
        (
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "Internal-IP*",
            "External-IP*",
            "OS-Image*",
            "Kernel-Version*",
            "Container-Runtime*",
        ),
        _node,
    ),
    "events": (
        (
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "Subobject*",
            "Source*",
            "Message",
            "First Seen*",
            "Count*#",
            "Name*",
        ),
        _event,
    ),
    "persistentvolumeclaims": (
        (
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            "Age",
            "VolumeMode*",
        ),
        _claim,
    ),
    "persistentvolumes": (
        (
            "Name",
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            "VolumeAttributesClass",
            "Reason",
            "Age",
            "VolumeMode*",
        ),
        _volume,
    ),
    "resourcequotas": (("Name", "Request", "Limit", "Age"), _quota),
    "storageclasses": (
        ("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion?", "Age"),
        _storage_class,
    ),
    "leases": (
        ("Name", "Holder", "Age"),
        lambda obj: [_name(obj), _spec(obj).get("holderIdentity", ""), object_age(obj)],
    ),
    "controllerrevisions": (("Name", "Controller", "Revision#", "Age"), _revision),
    "configmaps": (("Name", "Data", "Age"), lambda obj: [_name(obj), _data(obj), object_age(obj)]),
    "secrets": (
        ("Name", "Type", "Data", "Age"),
        lambda obj: [_name(obj), obj.get("type", ""), _data(obj), object_age(obj)],
    ),
    "namespaces": (
        ("Name", "Status", "Age"),
        lambda obj: [_name(obj), _status(obj).get("phase", ""), object_age(obj)],
    ),
    "serviceaccounts": (("Name", "Age"), lambda obj: [_name(obj), object_age(obj)]),
    "services": (("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector*"), _service),
    "poddisruptionbudgets": (
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions#", "Age"),
        _budget,
    ),
    "priorityclasses": (
        ("Name", "Value#", "Global-Default?", "Age", "PreemptionPolicy"),
        lambda obj: [
            _name(obj),
            obj.get("value", 0),
            bool(obj.get("globalDefault", False)),
            object_age(obj),
            obj.get("preemptionPolicy", ""),
        ],
    ),
    "rolebindings": (("Name", "Role", "Age", "Users*", "Groups*", "ServiceAccounts*"), _binding),
    "clusterrolebindings": (("Name", "Role", "Age", "Users*", "Groups*", "ServiceAccounts*"), _binding),
    "roles": (_MADE, lambda obj: [_name(obj), obj["metadata"].get("creationTimestamp")]),
    "clusterroles": (_MADE, lambda obj: [_name(obj), obj["metadata"].get("creationTimestamp")]),
    "limitranges": (_MADE, lambda obj: [_name(obj), obj["metadata"].get("creationTimestamp")]),
    "customresourcedefinitions": (
        ("Name", "Scope", "Versions", "Created At@", "Group*", "Kind*", "ShortNames*", "Established*?"),
        _definition,
    ),
}


def builtin_columns(kind: Kind) -> Columns:
    names, cells = BUILTIN[kind.plural]
    return _heads(*names), cells
