"""Which nodes have a node agent that lives, by their Leases.

How long an agent has been silent is judged by our own clock, from when we saw its Lease change, as in
`kube.lease`. A Lease that goes (an agent that is replaced) counts as silence; one that never was, at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from hotvirt.api import names
from hotvirt.api.core import Lease
from hotvirt.api.kubevirt import VirtualMachineInstance, VMIStatus
from hotvirt.kube.events import Recorder
from hotvirt.kube.informer import Informer, Key
from hotvirt.plan import agents
from hotvirt.plan.instance import Problem

_PREFIX: Final = names.NODE_LEASE.format(node="")
DEFAULT_DURATION: Final = 40


class Agents:
    def __init__(
        self,
        leases: Informer[Lease],
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed(node)` is called when the agent of a node comes or goes."""
        self._leases = leases
        self._changed = changed
        self._clock = clock
        self._heard: dict[str, tuple[str, float, float]] = {}
        """By node: the Lease's version, until when it counts by our clock, and for how long it counted."""
        self._silent: set[str] = set()

    def problem(self, node: str) -> Problem | None:
        """Why nothing happens to the machines of this node; None when its agent lives."""
        if node in self._silent:
            return agents.went(node, self._heard[node][2])
        if node in self._heard or self._lease(node) is not None:
            return None
        return agents.never_came(node)

    def any_lives(self) -> bool:
        """Whether there is an agent anywhere."""
        leases = (lease.metadata.name for lease in self._leases.list(names.NAMESPACE))
        nodes = {name.removeprefix(_PREFIX) for name in leases if name.startswith(_PREFIX)}
        return bool((nodes | self._heard.keys()) - self._silent)

    async def reconcile(self, key: Key) -> float | None:
        """Look at a Lease: when it has changed, and when it ends."""
        if not key[1].startswith(_PREFIX):
            return None
        node = key[1].removeprefix(_PREFIX)
        lease = self._lease(node)
        if lease is not None:
            self._hear(node, lease)
        if node not in self._heard:
            return None
        left = self._heard[node][1] - self._clock()
        if left > 0:
            return left
        if lease is None:
            del self._heard[node]
            self._silent.discard(node)
            self._changed(node)
        elif node not in self._silent:
            self._silent.add(node)
            self._changed(node)
        return None

    def _hear(self, node: str, lease: Lease) -> None:
        version = lease.metadata.resource_version
        known = self._heard.get(node)
        if known is not None and known[0] == version:
            return
        duration = float(lease.spec.lease_duration_seconds or DEFAULT_DURATION)
        self._heard[node] = version, self._clock() + duration, duration
        if known is None or node in self._silent:
            self._silent.discard(node)
            self._changed(node)

    def _lease(self, node: str) -> Lease | None:
        return self._leases.get(names.NAMESPACE, names.NODE_LEASE.format(node=node))


def tell_if_missing(recorder: Recorder, vmi: VirtualMachineInstance, old: VMIStatus, *kinds: str) -> None:
    """One event when a condition of the VMI begins to say that there is no agent."""
    found = agents.newly_missing(old.conditions, vmi.status.conditions, kinds)
    if found is not None:
        recorder.event(vmi, "Warning", agents.NO_AGENT, found.message)
