"""vCPUs: sockets × cores × threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hotvirt.api.domain import Domain

# A machine with more needs an interrupt remapping unit, which Hotvirt's machines do not have.
MOST_VCPUS: Final = 255


@dataclass(frozen=True, slots=True)
class Topology:
    sockets: int = 1
    cores: int = 1
    threads: int = 1

    @property
    def vcpus(self) -> int:
        return self.sockets * self.cores * self.threads

    def __str__(self) -> str:
        return f"{self.sockets}×{self.cores}×{self.threads}"


def topology(domain: Domain) -> Topology:
    """The topology of a machine.

    Where cpu gives none of the three, the sockets come from limits.cpu, else from requests.cpu, else
    there is one. Where it gives some, the others are 1.
    """
    cpu = domain.cpu
    if cpu and (cpu.sockets or cpu.cores or cpu.threads):
        return Topology(cpu.sockets or 1, cpu.cores or 1, cpu.threads or 1)
    resources = domain.resources
    if resources:
        amount = resources.limits.get("cpu") or resources.requests.get("cpu")
        if amount:
            return Topology(sockets=max(1, amount.value))
    return Topology()
