"""The CustomResourceDefinitions of Hotvirt, as they lie in `deploy/crds/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from hotvirt.api import cdi, kubevirt, names
from hotvirt.api.crd.descriptions import of_kind
from hotvirt.api.crd.schema import struct_schema
from hotvirt.api.crd.shapes import Schema
from hotvirt.api.meta import Kind
from hotvirt.api.resources import DATAVOLUMES, KUBEVIRTS, VMIMS, VMIS, VMS, Resource

HEADER: Final = "# Generated from the types in src/hotvirt/api: python -m hotvirt.api.crd\n"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; the wide ones are shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def definition(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.wide:
            column["priority"] = 1
        return column


def _condition(name: str, type: str, wide: bool = False) -> Column:
    return Column(name, f".status.conditions[?(@.type=='{type}')].status", wide=wide)


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
_PHASE: Final = Column("Phase", ".status.phase")

_KINDS: Final[tuple[tuple[Resource, type[Kind], tuple[Column, ...]], ...]] = (
    (
        VMS,
        kubevirt.VirtualMachine,
        (_AGE, Column("Status", ".status.printableStatus"), _condition("Ready", "Ready")),
    ),
    (
        VMIS,
        kubevirt.VirtualMachineInstance,
        (
            _AGE,
            _PHASE,
            Column("IP", ".status.interfaces[0].ipAddress"),
            Column("NodeName", ".status.nodeName"),
            _condition("Ready", "Ready"),
            _condition("Live-Migratable", "LiveMigratable", wide=True),
            _condition("Paused", "Paused", wide=True),
        ),
    ),
    (VMIMS, kubevirt.VirtualMachineInstanceMigration, (_PHASE, Column("VMI", ".spec.vmiName"))),
    (KUBEVIRTS, kubevirt.KubeVirt, (_AGE, _PHASE)),
    (
        DATAVOLUMES,
        cdi.DataVolume,
        (
            _PHASE,
            Column("Progress", ".status.progress"),
            Column("Restarts", ".status.restartCount", "integer"),
            _AGE,
        ),
    ),
)


def _root_schema(cls: type[Kind]) -> Schema:
    properties = struct_schema(cls)["properties"]
    # spec itself is required, so it is the one field that may not be null.
    properties["spec"] = {name: part for name, part in properties["spec"].items() if name != "nullable"}
    return {
        "description": of_kind(cls.__name__),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **properties,
        },
    }


def _crd(resource: Resource, cls: type[Kind], columns: tuple[Column, ...]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.group_resource, "labels": {names.LABEL_PART_OF: names.PART_OF}},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "plural": resource.plural,
                "singular": resource.singular,
                "kind": resource.kind,
                "listKind": resource.list_kind,
                "shortNames": list(resource.short_names),
                "categories": list(resource.categories),
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.definition() for column in columns],
                    "schema": {"openAPIV3Schema": _root_schema(cls)},
                }
            ],
        },
    }


def crds() -> list[dict[str, Any]]:
    """Every CustomResourceDefinition."""
    return [_crd(*kind) for kind in _KINDS]


class _Plain(yaml.SafeDumper):
    """YAML without anchors: every file can be read from top to bottom."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def files() -> dict[str, str]:
    """File name and content of each CRD."""
    return {
        f"{crd['metadata']['name']}.yaml": HEADER
        + yaml.dump(crd, Dumper=_Plain, sort_keys=False, width=4096, allow_unicode=True)
        for crd in crds()
    }


def write(folder: Path) -> list[Path]:
    """Write the files, and remove those that are no longer generated."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = files()
    for old in folder.glob("*.yaml"):
        if old.name not in wanted:
            old.unlink()
    for name, content in wanted.items():
        (folder / name).write_text(content)
    return [folder / name for name in wanted]
