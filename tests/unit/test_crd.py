"""The CRDs: fresh, structural, whole for a KubeVirt user, and strict about a misspelt field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hotvirt.api import cdi, cluster, conditions, core, domain, kubevirt, volumes
from hotvirt.api.crd import crds, unacted_fields
from hotvirt.api.crd.descriptions import described_fields
from hotvirt.api.crd.generate import files
from hotvirt.api.crd.upstream import upstream_fields

CHECKOUT = Path(__file__).parents[2]
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.yaml"))
TYPES = {
    cls.__name__: cls
    for module in (cdi, cluster, conditions, core, domain, kubevirt, volumes)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct)
}
CRDS = crds()
FILES = files()
BY_KIND = {crd["spec"]["names"]["kind"]: crd for crd in CRDS}


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = BY_KIND[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def unknown(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """The fields that a Kubernetes API server would prune."""
    if isinstance(value, dict) and path != ".metadata":
        for name, item in value.items():
            if name in schema.get("properties", {}):
                yield from unknown(schema["properties"][name], item, f"{path}.{name}")
            elif isinstance(schema.get("additionalProperties"), dict):
                yield from unknown(schema["additionalProperties"], item, f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{name}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown(schema["items"], item, f"{path}[{index}]")


def test_the_files_are_fresh() -> None:
    on_disk = {path.name: path.read_text() for path in (CHECKOUT / "deploy" / "crds").glob("*.yaml")}
    assert on_disk == FILES, "run: python -m hotvirt.api.crd"


@pytest.mark.parametrize("name", sorted(FILES))
def test_kubectl_can_apply_it(name: str) -> None:
    content = FILES[name]
    assert len(content.encode()) < 200_000
    assert yaml.load(content, yaml.CSafeLoader) in CRDS


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_the_schema_is_structural(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)):
        if schema.get("x-kubernetes-int-or-string"):
            assert "type" not in schema, path
        else:
            assert schema.get("type") in {"object", "array", "string", "integer", "boolean", "number"}, path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        if schema.get("type") == "array":
            assert "items" in schema, path


def test_nothing_but_foreign_types_is_open() -> None:
    open_paths = {
        path
        for path, schema in nodes(schema_of("VirtualMachine"))
        if schema.get("x-kubernetes-preserve-unknown-fields") and path.startswith(".spec")
    }
    assert open_paths == {
        ".spec.template.metadata",
        ".spec.template.spec.affinity",
        ".spec.dataVolumeTemplates[].metadata",
    }


def test_names_columns_and_subresources() -> None:
    vm = BY_KIND["VirtualMachine"]
    assert vm["metadata"]["name"] == "virtualmachines.kubevirt.io"
    assert vm["spec"]["names"]["shortNames"] == ["vm", "vms"]
    assert vm["spec"]["names"]["categories"] == ["all"]
    columns = {
        kind: [
            column["name"] + ("*" if column.get("priority") else "")
            for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]
        ]
        for kind, crd in BY_KIND.items()
    }
    assert columns == {
        "VirtualMachine": ["Age", "Status", "Ready"],
        "VirtualMachineInstance": ["Age", "Phase", "IP", "NodeName", "Ready", "Live-Migratable*", "Paused*"],
        "VirtualMachineInstanceMigration": ["Phase", "VMI"],
        "KubeVirt": ["Age", "Phase"],
        "DataVolume": ["Phase", "Progress", "Restarts", "Age"],
    }
    assert all(crd["spec"]["versions"][0]["subresources"] == {"status": {}} for crd in BY_KIND.values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_kept_whole(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] in BY_KIND:
            assert list(unknown(schema_of(document["kind"]), document)) == []


def test_a_misspelt_field_is_caught() -> None:
    vm = {"spec": {"template": {"spec": {"domain": {"cpu": {"socket": 2}, "features": {"acpy": {}}}}}}}
    assert list(unknown(schema_of("VirtualMachine"), vm)) == [
        ".spec.template.spec.domain.cpu.socket",
        ".spec.template.spec.domain.features.acpy",
    ]


def test_a_null_is_accepted_anywhere_below_spec() -> None:
    for path, schema in nodes(schema_of("VirtualMachine")["properties"]["spec"]):
        for name, inner in schema.get("properties", {}).items():
            if path == ".template.metadata":
                continue
            assert inner.get("nullable"), f"{path}.{name}"


def test_the_tables_speak_of_types_and_fields_that_exist() -> None:
    assert set(upstream_fields()) <= set(TYPES)
    for type_name, field in described_fields():
        names = {described.encode_name for described in msgspec.structs.fields(TYPES[type_name])}
        assert field in names, f"{type_name}.{field}"


def test_what_has_no_effect_is_named_once() -> None:
    vm = {
        "spec": {
            "runStrategy": "Always",
            "instancetype": {"name": "u1.nano"},
            "template": {
                "spec": {
                    "evictionStrategy": "LiveMigrate",
                    "domain": {
                        "clock": {"utc": {}},
                        "cpu": {"sockets": 1, "numa": None, "isolateEmulatorThread": False},
                        "devices": {
                            "disks": [{"name": "a"}, {"name": "b", "tag": "x"}],
                            "gpus": [],
                            "interfaces": [{"name": "default", "masquerade": {}}],
                        },
                    },
                }
            },
        }
    }
    assert unacted_fields("VirtualMachine", vm) == [
        "spec.instancetype",
        "spec.template.spec.evictionStrategy",
        "spec.template.spec.domain.clock",
        "spec.template.spec.domain.devices.disks[1].tag",
    ]
    assert unacted_fields("VirtualMachine", {"spec": None}) == []
    assert unacted_fields("Pod", {"spec": {"x": 1}}) == []
