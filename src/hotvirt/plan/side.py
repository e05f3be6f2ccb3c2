"""The containers of a launcher Pod beside `compute`: the console log, and the init step that copies disks
out of their images where the cluster has no image volumes.

The init step needs nothing in the disk's image but the disk: it brings a static busybox along. Its containers
are small on purpose: a Pod is counted with the largest of them for all its life, also after it has shrunk.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hotvirt.api import codec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.resources import Resources, qos_class

TOOLS_VOLUME: Final = "tools"
TOOLS_DIR: Final = "/hotvirt-tools"
_BUSYBOX: Final = f"{TOOLS_DIR}/busybox"
_BUSYBOX_OF_LAUNCHER: Final = "/usr/bin/busybox"
DISK_FOLDER: Final = "/disk"
"""Where the image of a containerDisk has its disk, unless the VM says otherwise."""

# $0 is busybox, $1 the folder to copy to, the others are what to copy, each to its place below that folder: a
# file, or a folder with files. Past the page cache, because what that holds would count as memory of the Pod
# for all its life, and the kubelet lowers no limit below it; the odd end, and all of it where the file system
# cannot do that, through the cache.
_COPY: Final = """\
set -e
to=$1
shift
copy() {
    "$0" mkdir -p "$to${1%/*}"
    size=$("$0" stat -L -c %s "$1")
    whole=$((size / 1048576))
    "$0" dd if="$1" of="$to$1" bs=1048576 count=$whole iflag=direct oflag=direct 2>/dev/null || whole=0
    "$0" dd if="$1" of="$to$1" bs=1048576 skip=$whole seek=$whole conv=notrunc status=none
}
for from; do
    if [ -d "$from" ]; then
        for file in "$from"/*; do
            if [ -f "$file" ]; then copy "$file"; fi
        done
    else
        copy "$from"
    fi
done
"""

Amounts = Mapping[str, Quantity]
CONSOLE_LOG_REQUESTS: Final[Amounts] = {"cpu": Quantity("5m"), "memory": Quantity("35M")}
CONSOLE_LOG_LIMITS: Final[Amounts] = {"cpu": Quantity("100m"), "memory": Quantity("60M")}
COPY_REQUESTS: Final[Amounts] = {"cpu": Quantity("100m"), "memory": Quantity("64M")}
COPY_LIMITS: Final[Amounts] = {"cpu": Quantity("500m"), "memory": Quantity("64M")}


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of one image that the machine needs; `volume` is mounted at `target` in `compute` too."""

    volume: str
    target: str
    image: str
    pull_policy: str
    paths: tuple[str, ...]


def image_path(path: str) -> str:
    """A path in an image as a user may write it, from the image's root."""
    return posixpath.normpath("/" + path.lstrip("/"))


def console_log_resources(compute: Resources) -> dict[str, Any]:
    return _resources(compute, CONSOLE_LOG_REQUESTS, CONSOLE_LOG_LIMITS)


def init_containers(
    copies: list[Copy], launcher_image: str, pull_policy: str, compute: Resources
) -> list[dict[str, Any]]:
    """In their order: the tools, then one container for each image."""
    if not copies:
        return []
    resources = _resources(compute, COPY_REQUESTS, COPY_LIMITS)
    tools = _container(
        TOOLS_VOLUME,
        launcher_image,
        pull_policy,
        [_BUSYBOX_OF_LAUNCHER, "cp", _BUSYBOX_OF_LAUNCHER, _BUSYBOX],
        [{"name": TOOLS_VOLUME, "mountPath": TOOLS_DIR}],
        resources,
    )
    return [tools, *(_copying(copy, resources) for copy in copies)]


def _copying(copy: Copy, resources: dict[str, Any]) -> dict[str, Any]:
    return _container(
        copy.volume,
        copy.image,
        copy.pull_policy,
        # The kubelet expands $(NAME): a dollar that is not meant so is written twice.
        [
            _BUSYBOX,
            "sh",
            "-c",
            _COPY.replace("$", "$$"),
            _BUSYBOX,
            copy.target,
            *(path.replace("$", "$$") for path in copy.paths),
        ],
        [
            {"name": TOOLS_VOLUME, "mountPath": TOOLS_DIR, "readOnly": True},
            {"name": copy.volume, "mountPath": copy.target},
        ],
        resources,
    )


def _container(
    name: str,
    image: str,
    pull_policy: str,
    command: list[str],
    mounts: list[dict[str, Any]],
    resources: dict[str, Any],
) -> dict[str, Any]:
    container = {
        "name": name,
        "image": image,
        "command": command,
        "resources": resources,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
    }
    return container | ({"imagePullPolicy": pull_policy} if pull_policy else {})


def container_security() -> dict[str, Any]:
    """What every container of a launcher Pod runs with: the Pod Security level `restricted` asks for it."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def _resources(compute: Resources, requests: Amounts, limits: Amounts) -> dict[str, Any]:
    """Small, with limits where `compute` has them: quotas and the QoS class look at every container.

    Never more than `compute` has, so that what is allowed for that is allowed for this.
    """
    has = compute["limits"]
    own_limits = {name: min(limit, has[name]) for name, limit in limits.items() if name in has}
    if qos_class(compute) == "Guaranteed":
        own_requests = own_limits
    else:
        most = compute["requests"]
        own_requests = {name: min(amount, most.get(name, amount)) for name, amount in requests.items()}
    resources = {"requests": own_requests, "limits": own_limits}
    built: dict[str, Any] = codec.builtins({key: amounts for key, amounts in resources.items() if amounts})
    return built
