"""Where Hotvirt does not work: beside a KubeVirt, and on a Kubernetes that cannot resize Pods in place.

Then it says so, is not ready, and touches nothing.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hotvirt.api import names
from hotvirt.api.resources import CRDS, DEPLOYMENTS, KUBEVIRTS, VMIMS, VMIS, VMS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import NotFound

OLDEST: Final = (1, 34)
FOREIGN: Final = ("virt-operator", "virt-controller")
OURS: Final = (VMS, VMIS, VMIMS, KUBEVIRTS)


async def objection(client: Client) -> str | None:
    """Why Hotvirt does not work on this cluster; None when it does."""
    too_old = old_kubernetes(await client.request("GET", "/version"))
    if too_old:
        return too_old
    for name in FOREIGN:
        found = await client.list(DEPLOYMENTS, field_selector=f"metadata.name={name}")
        if found.items:
            namespace = found.items[0]["metadata"]["namespace"]
            return (
                f"KubeVirt is installed here: there is a Deployment {name} in namespace {namespace}. Hotvirt "
                "serves the same API and does not work beside it. Remove KubeVirt first, or use another "
                "cluster."
            )
    for resource in OURS:
        try:
            crd = await client.get(CRDS, resource.group_resource)
        except NotFound:
            return (
                f"The CRD {resource.group_resource} is missing. Install Hotvirt's CRDs: they come with its "
                "chart, and with deploy/install.yaml."
            )
        labels = crd["metadata"].get("labels") or {}
        if labels.get(names.LABEL_PART_OF) != names.PART_OF:
            return (
                f"The CRD {resource.group_resource} is not Hotvirt's: it has no label "
                f"{names.LABEL_PART_OF}={names.PART_OF}. It was left by a KubeVirt. Remove it, with "
                "all VMs of that KubeVirt, or use another cluster."
            )
    return None


def old_kubernetes(version: dict[str, Any]) -> str | None:
    """Of what /version answers; a minor may read `34+`."""
    numbers = [re.match(r"\d+", str(version.get(part) or "")) for part in ("major", "minor")]
    found = tuple(int(number.group()) if number else 0 for number in numbers)
    if found >= OLDEST:
        return None
    return (
        f"This is Kubernetes {version.get('gitVersion') or 'of an unknown version'}. Hotvirt needs "
        f"{OLDEST[0]}.{OLDEST[1]} or newer, which resizes Pods in place. Upgrade the cluster first."
    )
