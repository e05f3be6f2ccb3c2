"""What goes first when many VMs are made at once: Pods before the news of those that exist.

Only what is said of a machine before it runs may wait, and only while all is well. Whatever ends, fails or
is asked of a machine is urgent.
"""

from __future__ import annotations

from typing import Final

from hotvirt.api.conditions import FALSE, find
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import VirtualMachine, VirtualMachineInstance
from hotvirt.kube.rush import Priority
from hotvirt.plan.instance import BEFORE_HANDOVER, pod_problem
from hotvirt.plan.status import POD_SCHEDULED, SYNCHRONIZED

POD_PENDING: Final = frozenset({"", "Pending"})


def news_of_vm(old: VirtualMachine | None, new: VirtualMachine | None) -> Priority:
    """The echo of what was written into a VM waits; an edit or a request does not."""
    if old is None or new is None or new.metadata.deleting or old.metadata.uid != new.metadata.uid:
        return Priority.CHANGE
    asked = (old.metadata.generation, old.status.state_change_requests, old.status.start_failure)
    asks = (new.metadata.generation, new.status.state_change_requests, new.status.start_failure)
    return Priority.MIRROR if asked == asks else Priority.CHANGE


def news_of_vmi(old: VirtualMachineInstance | None, new: VirtualMachineInstance | None) -> Priority:
    """A new one needs its Pod; what its status says until it is handed over is the echo of its reports."""
    if old is None or new is None or old.metadata.generation != new.metadata.generation:
        return Priority.CHANGE
    return Priority.REPORT if _gets_on(new) else Priority.CHANGE


def news_of_vmi_for_vm(old: VirtualMachineInstance | None, new: VirtualMachineInstance | None) -> Priority:
    return Priority.MIRROR if new is not None and _gets_on(new) else Priority.CHANGE


def news_of_pod(old: Pod | None, new: Pod | None) -> Priority:
    if new is None or new.metadata.deleting or new.status.phase not in POD_PENDING:
        return Priority.CHANGE
    scheduled = find(new.status.conditions, POD_SCHEDULED)
    stuck = pod_problem(new) is not None or (scheduled is not None and scheduled.status == FALSE)
    return Priority.CHANGE if stuck else Priority.REPORT


def _gets_on(vmi: VirtualMachineInstance) -> bool:
    """On its way to its node, and nothing keeps it from getting there."""
    if vmi.metadata.deleting or vmi.status.phase not in BEFORE_HANDOVER:
        return False
    return all(
        each.status != FALSE for each in vmi.status.conditions if each.type in (SYNCHRONIZED, POD_SCHEDULED)
    )
