"""Which fields of an object Hotvirt keeps but does not act on: the subject of the one admission warning."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec

from hotvirt.api import cdi, kubevirt
from hotvirt.api.crd.schema import without_none
from hotvirt.api.crd.upstream import upstream_fields

_SPECS: Final[dict[str, type[msgspec.Struct]]] = {
    "VirtualMachine": kubevirt.VMSpec,
    "VirtualMachineInstance": kubevirt.VMISpec,
    "VirtualMachineInstanceMigration": kubevirt.MigrationSpec,
    "KubeVirt": kubevirt.KubeVirtSpec,
    "DataVolume": cdi.DataVolumeSpec,
}
# Read by the planner or kept for what comes next, but without an effect of their own yet.
TYPED_BUT_UNACTED: Final = frozenset(
    {
        "VMSpec.instancetype",
        "VMSpec.preference",
        "VMSpec.updateVolumesStrategy",
        "ClaimVolume.hotpluggable",
        "DataVolumeVolume.hotpluggable",
        "Devices.logSerialConsole",
        "KubeVirtSpec.workloadUpdateStrategy",
    }
)
# What a field that is not set looks like: it needs no warning.
_NOTHING: Final[tuple[Any, ...]] = (None, {}, [], "", False, 0)


def unacted_fields(kind: str, obj: dict[str, Any]) -> list[str]:
    """The paths of the fields under `spec` that are set and have no effect, each once, in order."""
    cls = _SPECS.get(kind)
    spec = obj.get("spec")
    if cls is None or not isinstance(spec, dict):
        return []
    return list(dict.fromkeys(_walk(cls, spec, "spec")))


@cache
def _types(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field, by its name on the wire."""
    return {field.encode_name: without_none(field.type) for field in msgspec.structs.fields(cls)}


def _walk(cls: type[msgspec.Struct], value: dict[str, Any], path: str) -> Iterator[str]:
    upstream = upstream_fields().get(cls.__name__, {})
    typed = _types(cls)
    for name, item in value.items():
        here = f"{path}.{name}"
        if name not in typed:
            if name in upstream and item not in _NOTHING:
                yield here
            continue
        if f"{cls.__name__}.{name}" in TYPED_BUT_UNACTED:
            if item not in _NOTHING:
                yield here
            continue
        inner = typed[name]
        if get_origin(inner) is tuple and isinstance(item, list):
            element = get_args(inner)[0]
            if isinstance(element, type) and issubclass(element, msgspec.Struct):
                for index, part in enumerate(item):
                    if isinstance(part, dict):
                        yield from _walk(element, part, f"{here}[{index}]")
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(item, dict):
            yield from _walk(inner, item, here)
