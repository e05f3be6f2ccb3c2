"""Hotvirt's own CRDs, as deploy/crds has them: accepted as they are, and nothing of them is lost."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.targets.target import CHECKOUT

from .client import Api

CRDS = [
    crd
    for file in sorted((CHECKOUT / "deploy/crds").glob("*.yaml"))
    for crd in yaml.safe_load_all(file.read_text())
]


async def stored(api: Api, crd: dict[str, Any]) -> dict[str, Any]:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    found: dict[str, Any] = (await api.get(path)).ok()
    return found


def contains(whole: Any, part: Any) -> bool:
    """Everything of `part` is in `whole`, which may have defaults besides."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and contains(whole[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["plural"])
async def test_a_crd_of_hotvirt_is_structural_and_served(api: Api, crd: dict[str, Any]) -> None:
    found = {each["type"]: each["status"] for each in (await stored(api, crd))["status"]["conditions"]}
    assert (found["NamesAccepted"], found["Established"]) == ("True", "True")
    assert "NonStructuralSchema" not in found
    assert "KubernetesAPIApprovalPolicyConformant" not in found


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["plural"])
async def test_a_crd_of_hotvirt_is_kept_whole(api: Api, crd: dict[str, Any]) -> None:
    assert contains((await stored(api, crd))["spec"], crd["spec"])
