"""What the cluster under a launcher Pod offers: decided where Hotvirt is installed, not by a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hotvirt import __version__
from hotvirt.api import names


@dataclass(frozen=True, slots=True)
class Platform:
    launcher_image: str = f"{names.LAUNCHER_IMAGE}:{__version__}"
    image_volumes: bool = True
    """Whether a Pod can mount an image as a volume; else init containers copy out of it."""
    kvm_resource: str = ""
    """What a Pod asks the node for to get /dev/kvm; empty where it is there anyway or never."""
    agent_leases: bool = False
    """Whether every node has an agent of its own, which says by a Lease that it lives."""


EMBEDDED: Final = Platform()
"""One machine: the node takes image volumes, and its processes see the host's devices."""
