"""What is there from the first moment: the namespaces every cluster has, two priority classes, our CRDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hotvirt.api.crd.generate import crds

from .call import Call, User
from .crds import RESOURCE as CRD_RESOURCE
from .internal import InternalRequest
from .objects import clone
from .write import load

if TYPE_CHECKING:
    from .api import Api

Object = dict[str, Any]
SERVER: Final = User("system:apiserver", ("system:masters",))
NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
PRIORITIES: Final = {
    "system-cluster-critical": (
        2000000000,
        "Used for system critical pods that must run in the cluster, but can be moved to "
        "another node if necessary.",
    ),
    "system-node-critical": (
        2000001000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


class Bootstrap:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self) -> None:
        for name in NAMESPACES:
            await self._ensure("", "v1", "namespaces", {"metadata": {"name": name}})
        for name, (value, description) in PRIORITIES.items():
            priority = {"metadata": {"name": name}, "value": value, "description": description}
            await self._ensure("scheduling.k8s.io", "v1", "priorityclasses", priority)
        for crd in crds():
            await self._install(clone(crd))

    def _call(self, group: str, version: str, plural: str, name: str, verb: str) -> Call:
        kind = self._api.registry.find(group, version, plural)
        assert kind is not None
        return Call(InternalRequest(), SERVER, kind, "", name, "", verb)

    async def _ensure(self, group: str, version: str, plural: str, obj: Object) -> None:
        call = self._call(group, version, plural, obj["metadata"]["name"], "create")
        if self._api.store.get(call.key) is None:
            made = {"apiVersion": call.kind.api_version, "kind": call.kind.kind, **obj}
            await self._api.writer.create_object(call, made, dry_run=False)

    async def _install(self, crd: Object) -> None:
        name = crd["metadata"]["name"]
        call = self._call("apiextensions.k8s.io", "v1", "customresourcedefinitions", name, "update")
        entry = self._api.store.get((CRD_RESOURCE, "", name))
        if entry is None:
            await self._api.writer.create_object(call, crd, dry_run=False)
            return
        stored = load(call.kind, entry)
        if all(
            stored["spec"].get(field) == value for field, value in crd["spec"].items() if field != "names"
        ):
            return

        def replace(old: Object) -> Object:
            old["spec"] = crd["spec"]
            return old

        await self._api.writer.change(call, replace)
