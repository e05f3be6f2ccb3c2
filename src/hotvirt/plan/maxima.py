"""How far a machine can grow without a restart.

For both sizes in this order: what the VM says, what its instance type says, the cluster's value, the
cluster's ratio.
"""

from __future__ import annotations

from typing import Final

from hotvirt.api.domain import Domain
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import GIB, LARGEST_GUEST, alignment, guest_memory, most_with
from hotvirt.plan.topology import MOST_VCPUS, topology

# Below this size a guest pays too much at boot for memory that it may never get (128 MiB panics), so
# that only an explicit maximum gives headroom.
SMALLEST_GUEST_BY_RATIO: Final = GIB


def max_sockets(domain: Domain, config: ClusterConfig, instancetype_max: int | None = None) -> int:
    """The most sockets that the machine can have; never fewer than it has."""
    shape = topology(domain)
    explicit = (domain.cpu.max_sockets if domain.cpu else 0) or instancetype_max
    if explicit:
        return max(explicit, shape.sockets)
    most = MOST_VCPUS // (shape.cores * shape.threads)
    return max(shape.sockets, min(config.max_sockets or shape.sockets * config.max_hotplug_ratio, most))


def max_guest(
    spec: VMISpec, config: ClusterConfig, instancetype_max: Quantity | None = None
) -> Quantity | None:
    """The most memory that the guest can have, or None when there is no headroom."""
    guest = guest_memory(spec)
    explicit = (spec.domain.memory.max_guest if spec.domain.memory else None) or instancetype_max
    wanted = explicit or config.max_guest
    if not wanted and guest.value >= SMALLEST_GUEST_BY_RATIO:
        # More than a running guest can be given is not held ready.
        wanted = min(guest * config.max_hotplug_ratio, Quantity.bytes(most_with(guest.value)))
    if not wanted:
        return None
    if explicit:
        return max(explicit, guest)
    step = alignment(spec)
    aligned = Quantity.bytes(min(wanted, LARGEST_GUEST).value // step * step)
    # Memory is plugged in whole steps: from any other size no size that can be asked for is reached.
    return aligned if aligned > guest and not guest.value % step else None
