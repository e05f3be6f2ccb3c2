"""`kubectl explain` of Hotvirt's kinds: all that their schemas say, in the same words on every server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.targets.target import CHECKOUT

from .kubectl import Kubectl

CRDS = [
    crd
    for file in sorted((CHECKOUT / "deploy/crds").glob("*.yaml"))
    for crd in yaml.safe_load_all(file.read_text())
]
TOLD: dict[tuple[str, str], str] = {}
"""What a kubectl was told before, of another server."""
# Deep enough to have every form of a field: references, lists, maps, numbers or strings, enumerations.
# (What is below metadata is not ours to explain.)
PLACES = (
    "vm",
    "vm.spec",
    "vm.spec.template.spec.domain.cpu",
    "vm.spec.template.spec.domain.devices.disks",
    "vm.spec.template.spec.volumes.containerDisk",
    "vm.spec.template.spec.readinessProbe.httpGet.port",
    "vm.spec.updateVolumesStrategy",
    "vmi.status.conditions",
    "kubevirt.spec.configuration",
)


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """The names of everything that a schema lets one write, at any depth."""
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from fields(inner)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from fields(inner)


def same_as_elsewhere(kubectl: Kubectl, words: str, told: str) -> bool:
    return TOLD.setdefault((str(kubectl.binary), words), told) == told


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["plural"])
def test_explain_tells_every_field_of_a_kind(kubectl: Kubectl, crd: dict[str, Any]) -> None:
    version = crd["spec"]["versions"][0]
    name = crd["metadata"]["name"]
    told = kubectl("explain", name, "--recursive")
    shown = set(re.findall(r"^\s*(\S+)\s+<", told, re.MULTILINE))
    assert set(fields(version["schema"]["openAPIV3Schema"])) <= shown
    assert f"KIND:       {crd['spec']['names']['kind']}\n" in told
    assert same_as_elsewhere(kubectl, f"{name} --recursive", told)


@pytest.mark.parametrize("place", PLACES)
def test_explain_reads_the_same_everywhere(kubectl: Kubectl, place: str) -> None:
    told = kubectl("explain", place)
    assert "DESCRIPTION:" in told
    assert same_as_elsewhere(kubectl, place, told)
