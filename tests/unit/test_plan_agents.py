"""What is said while a node's agent is not there, and when it is worth an event."""

from __future__ import annotations

import pytest

from hotvirt.api.conditions import FALSE, Condition
from hotvirt.api.kubevirt import VMIStatus
from hotvirt.plan.agents import NO_AGENT, never_came, newly_missing, waits_for_agent, went

SAYS = Condition(type="Synchronized", status=FALSE, reason=NO_AGENT, message="none")
OTHER = Condition(type="Synchronized", status=FALSE, reason="ErrImagePull", message="no image")


def test_the_words_name_the_node_and_what_to_do() -> None:
    for problem in (never_came("node-b"), went("node-b", 40.0)):
        assert problem.reason == NO_AGENT
        assert "node-b" in problem.message
        assert "kubectl -n kubevirt get pods" in problem.message
    assert "for more than 40 s" in went("node-b", 40.0).message


@pytest.mark.parametrize(
    ("old", "new", "told"), [((), (SAYS,), True), ((OTHER,), (SAYS,), True), ((SAYS,), (SAYS,), False)]
)
def test_it_is_told_once(old: tuple[Condition, ...], new: tuple[Condition, ...], told: bool) -> None:
    assert newly_missing(old, new, ["Synchronized"]) == (SAYS if told else None)


@pytest.mark.parametrize(
    ("phase", "waits"), [("Scheduling", False), ("Scheduled", True), ("Running", False), ("Failed", False)]
)
def test_only_a_machine_that_is_to_start_waits(phase: str, waits: bool) -> None:
    assert waits_for_agent(phase, VMIStatus()) is waits
