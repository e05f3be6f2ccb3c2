"""Discovery: which groups, versions and resources there are; plain, and all in one answer (aggregated)."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from .call import Reply
from .kinds import Kind, Registry, Subresource

Object = dict[str, Any]
# What stands first wins when two groups have a resource of one name.
FIRST_GROUPS = (
    "",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "kubevirt.io",
    "cdi.kubevirt.io",
)


class Discovery:
    """Documents are made once for every generation of the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.mounted: dict[tuple[str, str], list[Object]] = {}
        """Group versions served by others (the aggregated API): their APIResources."""
        self._made: dict[object, tuple[int, bytes]] = {}

    def _once(self, key: object, make: Any) -> bytes:
        generation = self._registry.generation
        known = self._made.get(key)
        if known is None or known[0] != generation:
            known = self._made[key] = (generation, msgspec.json.encode(make()))
        return known[1]

    def groups(self) -> dict[str, dict[str, list[Kind]]]:
        groups = {name: dict(versions) for name, versions in self._registry.groups().items()}
        for group, version in self.mounted:
            groups.setdefault(group, {}).setdefault(version, [])
        order = {name: at for at, name in enumerate(FIRST_GROUPS)}
        return {
            name: dict(sorted(groups[name].items(), key=lambda item: version_order(item[0]), reverse=True))
            for name in sorted(groups, key=lambda name: (order.get(name, len(order)), name))
        }

    # Plain -----------------------------------------------------------------------------------------------

    def api_versions(self, address: str) -> Reply:
        return Reply(
            msgspec.json.encode(
                {
                    "kind": "APIVersions",
                    "versions": ["v1"],
                    "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
                }
            )
        )

    def group_list(self) -> Reply:
        return Reply(
            self._once(
                "groups",
                lambda: {
                    "kind": "APIGroupList",
                    "apiVersion": "v1",
                    "groups": [
                        _group(name, list(versions)) for name, versions in self.groups().items() if name
                    ],
                },
            )
        )

    def group(self, name: str) -> Reply | None:
        versions = self.groups().get(name)
        if not versions or not name:
            return None
        return Reply(
            msgspec.json.encode({"kind": "APIGroup", "apiVersion": "v1", **_group(name, list(versions))})
        )

    def resources(self, group: str, version: str) -> Reply | None:
        kinds = self.groups().get(group, {}).get(version)
        if kinds is None:
            return None
        return Reply(self._once((group, version), lambda: self._resource_list(group, version, kinds)))

    def _resource_list(self, group: str, version: str, kinds: list[Kind]) -> Object:
        resources: list[Object] = list(self.mounted.get((group, version), []))
        for kind in kinds:
            entry: Object = {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(kind.verbs),
            }
            if kind.short_names:
                entry["shortNames"] = list(kind.short_names)
            if kind.categories:
                entry["categories"] = list(kind.categories)
            if kind.persistent:
                digest = hashlib.sha256(kind.store_key.encode()).digest()
                entry["storageVersionHash"] = msgspec.json.encode(digest[:8]).decode().strip('"')
            resources.append(entry)
            resources.extend(_plain_subresource(kind, one) for one in kind.subresources.values())
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }

    # Aggregated ------------------------------------------------------------------------------------------

    def aggregated(self, core: bool, version: str, if_none_match: str) -> Reply:
        body = self._once((core, version), lambda: self._group_discovery(core, version))
        etag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
        headers = {"ETag": etag, "Vary": "Accept", "Cache-Control": "public"}
        type_ = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        if if_none_match and if_none_match.strip() in (etag, etag.strip('"')):
            return Reply(b"", 304, type_, headers)
        return Reply(body, 200, type_, headers)

    def _group_discovery(self, core: bool, version: str) -> Object:
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": [
                {
                    "metadata": {"name": name, "creationTimestamp": None}
                    if name
                    else {"creationTimestamp": None},
                    "versions": [
                        {
                            "version": one,
                            "resources": [_aggregated(kind) for kind in kinds]
                            + [_aggregated_mounted(entry) for entry in self.mounted.get((name, one), [])],
                            "freshness": "Current",
                        }
                        for one, kinds in versions.items()
                    ],
                }
                for name, versions in self.groups().items()
                if (name == "") == core
            ],
        }


def version_order(version: str) -> tuple[int, int, int]:
    """Stable versions before beta before alpha, larger numbers first (sorted in reverse)."""
    stem, _, number = version.removeprefix("v").partition("beta")
    if number:
        return (1, _int(stem), _int(number))
    stem, _, number = version.removeprefix("v").partition("alpha")
    if number:
        return (0, _int(stem), _int(number))
    return (2, _int(stem), 0)


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _plain_subresource(kind: Kind, sub: Subresource) -> Object:
    entry: Object = {
        "name": f"{kind.plural}/{sub.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": sub.kind or kind.kind,
        "verbs": list(sub.verbs),
    }
    if sub.group:
        entry |= {"group": sub.group, "version": sub.version}
    return entry


def _aggregated(kind: Kind) -> Object:
    entry: Object = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {
                    "group": sub.group or kind.group,
                    "version": sub.version or kind.version,
                    "kind": sub.kind or kind.kind,
                },
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources.values()
        ]
    return entry


def _aggregated_mounted(entry: Object) -> Object:
    return {
        "resource": entry["name"],
        "responseKind": {
            "group": entry.get("group", ""),
            "version": entry.get("version", ""),
            "kind": entry["kind"],
        },
        "scope": "Namespaced" if entry.get("namespaced") else "Cluster",
        "singularResource": entry.get("singularName", ""),
        "verbs": entry["verbs"],
    }
