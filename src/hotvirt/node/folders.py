"""The run folder of a Pod, found without following a link that a tenant could have made.

The kubelet makes the path down to an emptyDir and the tenant's Pod owns what is in it. Every folder below the
node root is opened by itself, from the one above, and links are refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RUN_FOLDER: Final = ("volumes", "kubernetes.io~empty-dir", "run")


def run_folder(node_root: Path, pod_uid: str) -> Path:
    """As the kubelet lays out a Pod's volumes."""
    return node_root.joinpath("pods", pod_uid, *RUN_FOLDER)


def open_run_folder(node_root: Path, pod_uid: str) -> int:
    """A descriptor of it. Raises OSError while the node has not made it, and where a link is in the way."""
    if not pod_uid or "/" in pod_uid or pod_uid in (".", ".."):
        raise FileNotFoundError(f"{pod_uid!r} is not the uid of a Pod")
    folder = os.open(node_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in ("pods", pod_uid, *RUN_FOLDER):
        above = folder
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        finally:
            os.close(above)
    return folder
