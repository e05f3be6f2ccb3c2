"""What a machine's owner is told while the node agent of its node is not there: pure.

An agent says by its Lease that it lives. Nothing else starts a machine on its node, or changes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hotvirt.api.conditions import FALSE, TRUE, Condition, find
from hotvirt.api.kubevirt import VMIStatus
from hotvirt.plan.instance import Problem
from hotvirt.plan.runstrategy import RUNNING, SCHEDULED

NO_AGENT: Final = "NodeAgentMissing"
MOST_NAMED: Final = 10
_WHAT_TO_DO: Final = (
    "Without it, machines there neither start nor change. See why it does not run: "
    "kubectl -n kubevirt get pods -o wide -l app.kubernetes.io/name=hotvirt-node. If the node is not meant "
    "for machines, keep them away with a nodeSelector; if it is, let the DaemonSet hotvirt-node run there "
    "(node.nodeSelector and node.tolerations of the chart)."
)


def never_came(node: str) -> Problem:
    return Problem(NO_AGENT, f"No Hotvirt node agent runs on node {node}. {_WHAT_TO_DO}")


def went(node: str, silence: float) -> Problem:
    said = f"The Hotvirt node agent of node {node} has not been heard of for more than {silence:.0f} s."
    return Problem(NO_AGENT, f"{said} {_WHAT_TO_DO}")


def of_the_cluster(somewhere: bool, left_alone: Sequence[str]) -> tuple[Condition, ...]:
    """What the KubeVirt object says: whether an agent lives anywhere, and which machines have none."""
    ready = "AllComponentsReady"
    if not somewhere:
        text = f"No Hotvirt node agent runs anywhere. {_WHAT_TO_DO}"
        available = Condition(type="Available", status=FALSE, reason=NO_AGENT, message=text)
        waits = Condition(
            type="Progressing", status=TRUE, reason=NO_AGENT, message="The first node agent is waited for."
        )
    else:
        available = Condition(
            type="Available", status=TRUE, reason=ready, message="Machines start and change."
        )
        waits = Condition(type="Progressing", status=FALSE, reason=ready, message="Nothing is waited for.")
    degraded = Condition(
        type="Degraded",
        status=FALSE,
        reason=ready,
        message="The node agent of every node with machines has been heard of.",
    )
    if left_alone:
        named = ", ".join(left_alone[:MOST_NAMED])
        more = f" and {len(left_alone) - MOST_NAMED} more" if len(left_alone) > MOST_NAMED else ""
        text = f"Nodes with machines and without a Hotvirt node agent: {named}{more}. {_WHAT_TO_DO}"
        degraded = Condition(type="Degraded", status=TRUE, reason=NO_AGENT, message=text)
    return available, waits, degraded


def waits_for_agent(phase: str, status: VMIStatus) -> bool:
    """Whether the next step is the agent's: a start, or a request such as Pause. Sizes have their own say."""
    return phase == SCHEDULED or (phase == RUNNING and bool(status.hotvirt.requests))


def newly_missing(
    old: Sequence[Condition], new: Sequence[Condition], kinds: Sequence[str]
) -> Condition | None:
    """The condition that says now, and did not say before, that there is no agent."""
    for kind in kinds:
        said, says = find(old, kind), find(new, kind)
        if says is not None and says.reason == NO_AGENT and (said is None or said.reason != NO_AGENT):
            return says
    return None
