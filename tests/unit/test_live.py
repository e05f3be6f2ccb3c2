"""The planner of edits: what is live, what waits, and that neither holds back the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.kube.patch import apply_merge_patch
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.differences import acted_on, differences
from hotvirt.plan.live import UpdatePlan, plan_update

CONFIG = ClusterConfig()
STAGE = ClusterConfig(rollout_strategy="Stage")


def template(**domain: Any) -> dict[str, Any]:
    return {
        "domain": {
            "cpu": {"sockets": 1},
            "memory": {"guest": "1Gi"},
            "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
        }
        | domain,
        "volumes": [{"name": "root", "containerDisk": {"image": "a/b:1"}}],
        "terminationGracePeriodSeconds": 5,
    }


def vm_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"runStrategy": "Always", "template": {"spec": spec}}}


def vmi_of(spec: dict[str, Any], config: ClusterConfig = CONFIG, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a"},
        "spec": vmi_defaults(spec, config),
        "status": {"phase": "Running"} | status,
    }


def edited(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    target = changed
    *parents, last = path.split(".")
    for name in parents:
        target = target.setdefault(name, {})
    target[last] = value
    return changed


def plan(
    new: dict[str, Any],
    old: dict[str, Any] | None = None,
    config: ClusterConfig = CONFIG,
    with_baseline: bool = True,
) -> UpdatePlan:
    old = template() if old is None else old
    return plan_update(vm_of(new), vmi_of(old), config, old if with_baseline else None)


def messages(result: UpdatePlan) -> tuple[list[str], list[str]]:
    return [change.message for change in result.live], [cause.message for cause in result.restart]


@pytest.mark.parametrize("with_baseline", [True, False])
def test_nothing_changed(with_baseline: bool) -> None:
    assert plan(template(), with_baseline=with_baseline) == UpdatePlan()


@pytest.mark.parametrize("with_baseline", [True, False])
def test_more_sockets_are_live(with_baseline: bool) -> None:
    result = plan(edited(template(), "domain.cpu.sockets", 2), with_baseline=with_baseline)
    assert messages(result) == (["domain.cpu.sockets 1→2: live, +100m cpu"], [])
    assert result.vmi_patch == {"spec": {"domain": {"cpu": {"sockets": 2}}}}
    assert result.live[0].field == "spec.template.spec.domain.cpu.sockets"


def test_once_the_vmi_has_them_there_is_nothing_left_to_do() -> None:
    new = edited(template(), "domain.cpu.sockets", 2)
    vmi = vmi_of(template())
    vmi["spec"]["domain"]["cpu"]["sockets"] = 2
    assert plan_update(vm_of(new), vmi, CONFIG, template()) == UpdatePlan()


@pytest.mark.parametrize(
    ("path", "value", "config", "text"),
    [
        (
            "domain.cpu.sockets",
            9,
            CONFIG,
            "domain.cpu.sockets 1→9: needs a restart, the running machine has room",
        ),
        (
            "domain.cpu.sockets",
            2,
            STAGE,
            "domain.cpu.sockets 1→2: needs a restart, vmRolloutStrategy is Stage",
        ),
        (
            "domain.cpu.sockets",
            2,
            ClusterConfig(disabled_gates=frozenset({"InPlaceHotplug"})),
            "domain.cpu.sockets 1→2: needs a restart, the feature gate InPlaceHotplug is off",
        ),
        ("domain.cpu.cores", 2, CONFIG, "domain.cpu.cores 1→2: needs a restart"),
        ("domain.cpu.threads", 2, CONFIG, "domain.cpu.threads 1→2: needs a restart"),
        (
            "domain.cpu.model",
            "host-passthrough",
            CONFIG,
            "domain.cpu.model host-passthrough added: needs a restart",
        ),
        ("domain.cpu.maxSockets", 8, CONFIG, "domain.cpu.maxSockets 8 added: needs a restart"),
        ("domain.memory.maxGuest", "8Gi", CONFIG, "domain.memory.maxGuest 8Gi added: needs a restart"),
        (
            "domain.memory.guest",
            "5Gi",
            CONFIG,
            "domain.memory.guest 1Gi→5Gi: needs a restart, the running machine has room for 4Gi",
        ),
        (
            "domain.memory.guest",
            "512Mi",
            CONFIG,
            "domain.memory.guest 1Gi→512Mi: needs a restart, the machine booted with 1Gi, which stays (with",
        ),
        (
            "domain.memory.guest",
            "1025Mi",
            CONFIG,
            "domain.memory.guest 1Gi→1025Mi: needs a restart, a machine that booted with 1Gi changes in",
        ),
        ("domain.memory.guest", "512Mi", STAGE, "domain.memory.guest 1Gi→512Mi: needs a restart, vmRollout"),
        (
            "domain.resources.limits.cpu",
            "2",
            CONFIG,
            "domain.resources.limits.cpu 2 added: needs a restart, a limit can neither appear nor go",
        ),
        (
            "domain.resources.requests.cpu",
            "2",
            STAGE,
            "domain.resources.requests.cpu 2 added: needs a restart, vmRolloutStrategy is Stage",
        ),
        ("domain.devices.rng", {}, CONFIG, "domain.devices.rng added: needs a restart"),
        ("hostname", "b", CONFIG, "hostname b added: needs a restart"),
        ("terminationGracePeriodSeconds", 9, CONFIG, "terminationGracePeriodSeconds 5→9: needs a restart"),
        (
            "nodeSelector",
            {"zone": "a"},
            STAGE,
            "nodeSelector added: needs a restart, vmRolloutStrategy is Stage",
        ),
    ],
)
def test_what_waits_for_a_restart(path: str, value: Any, config: ClusterConfig, text: str) -> None:
    result = plan(edited(template(), path, value), config=config)
    assert result.live == [] and result.vmi_patch == {}
    assert [cause.message[: len(text)] for cause in result.restart] == [text]
    assert result.restart[0].field == f"spec.template.spec.{path}"


def test_fewer_sockets_are_live() -> None:
    old = template(cpu={"sockets": 4})
    vmi = vmi_of(old, conditions=[{"type": "AgentConnected", "status": "True"}])
    result = plan_update(vm_of(edited(old, "domain.cpu.sockets", 1)), vmi, CONFIG, old)
    assert messages(result) == (
        ["domain.cpu.sockets 4→1: live, -300m cpu once the guest has let go"],
        [],
    )


def test_arm64_waits() -> None:
    old = template() | {"architecture": "arm64"}
    result = plan(edited(old, "domain.cpu.sockets", 2), old)
    assert "arm64" in result.restart_message


def test_the_live_part_is_done_and_every_cause_is_named() -> None:
    new = edited(edited(template(), "domain.cpu.sockets", 2), "domain.cpu.cores", 2)
    new["hostname"] = "b"
    new["volumes"].append({"name": "data", "emptyDisk": {"capacity": "1Gi"}})
    new["domain"]["devices"]["disks"][0]["bootOrder"] = 1
    live, restart = messages(plan(new))
    assert live == ["domain.cpu.sockets 1→2: live, +100m cpu"]
    assert restart == [
        "domain.cpu.cores 1→2: needs a restart, it is fixed at start",
        "domain.devices.disks[root].bootOrder 1 added: needs a restart",
        "volumes[data] added: needs a restart",
        "hostname b added: needs a restart",
    ]


@pytest.mark.parametrize("with_baseline", [True, False])
def test_a_removed_volume_waits(with_baseline: bool) -> None:
    old = template()
    old["volumes"].append({"name": "data", "emptyDisk": {"capacity": "1Gi"}})
    _, restart = messages(plan(template(), old, with_baseline=with_baseline))
    assert restart == ["volumes[data] removed: needs a restart"]


def test_placement_is_noted_at_once() -> None:
    old = template() | {"nodeSelector": {"zone": "a", "disk": "ssd"}}
    new = template() | {"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "x"}]}
    result = plan(new, old)
    assert result.restart == []
    assert result.vmi_patch == {
        "spec": {"nodeSelector": {"zone": "b", "disk": None}, "tolerations": [{"key": "x"}]}
    }


@pytest.mark.parametrize(
    "same",
    [
        template(cpu={"sockets": 1, "cores": 1, "threads": 1}),
        template(memory={"guest": "1024Mi"}),
        template(resources={}, machine=None, firmware=None),
        template(clock={"utc": {}}, features={"acpi": {}}),
    ],
    ids=["topology written out", "other unit", "empty and null", "without effect"],
)
def test_what_means_the_same_is_no_change(same: dict[str, Any]) -> None:
    assert plan(same) == UpdatePlan()


def test_sizes_that_come_from_the_requests_follow_them() -> None:
    old = template()
    old["domain"] = {"resources": {"requests": {"memory": "1Gi", "cpu": "2"}}, "devices": {}}
    new = edited(old, "domain.resources.requests.cpu", "4")
    new["domain"]["resources"]["requests"]["memory"] = "2Gi"
    assert messages(plan(new, old)) == (
        [
            "domain.cpu.sockets 2→4: live",
            "domain.memory.guest 1Gi→2Gi: live",
            "domain.resources.requests.cpu 2→4: live, +2 cpu",
            "domain.resources.requests.memory 1Gi→2Gi: live, +1026Mi memory",
        ],
        [],
    )


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}),
        ({}, {"phase": "Failed"}),
        ({}, {"phase": "Succeeded"}),
    ],
)
def test_a_machine_that_ends_is_left_alone(metadata: dict[str, Any], status: dict[str, Any]) -> None:
    vmi = vmi_of(template(), **status)
    vmi["metadata"] |= metadata
    assert plan_update(vm_of(edited(template(), "domain.cpu.sockets", 2)), vmi, CONFIG) == UpdatePlan()


edits = st.lists(
    st.sampled_from(
        [
            ("domain.cpu.sockets", 2),
            ("domain.cpu.sockets", 3),
            ("domain.cpu.sockets", 40),
            ("domain.cpu.cores", 2),
            ("domain.memory.guest", "3Gi"),
            ("domain.resources.requests.cpu", "2"),
            ("hostname", "x"),
            ("nodeSelector", {"a": "b"}),
            ("domain.devices.autoattachGraphicsDevice", False),
            ("domain.clock", {"utc": {}}),
        ]
    ),
    max_size=6,
)


def apply(spec: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    for path, value in changes:
        spec = edited(spec, path, value)
    return spec


@given(edits)
def test_reverting_clears_everything(changes: list[tuple[str, Any]]) -> None:
    """What was live is taken back, what waited waits no more."""
    started = vmi_of(template())
    forth = plan_update(vm_of(apply(template(), changes)), started, CONFIG, template())
    changed = apply_merge_patch(started, forth.vmi_patch)
    back = plan_update(vm_of(template()), changed, CONFIG, template())
    assert back.restart == []
    reverted = apply_merge_patch(changed, back.vmi_patch)
    assert plan_update(vm_of(template()), reverted, CONFIG, template()) == UpdatePlan()
    assert list(differences(acted_on(started["spec"]), acted_on(reverted["spec"]))) == []


@given(edits)
def test_the_part_that_waits_never_holds_back_the_live_part(changes: list[tuple[str, Any]]) -> None:
    only_live = [change for change in changes if change[0] == "domain.cpu.sockets" and change[1] < 5]
    others = [change for change in changes if change[0] != "domain.cpu.sockets"]
    alone = plan(apply(template(), only_live))
    together = plan(apply(apply(template(), only_live), others))
    assert {change.field for change in alone.live} <= {change.field for change in together.live}


@given(edits)
def test_stage_stages_everything(changes: list[tuple[str, Any]]) -> None:
    result = plan(apply(template(), changes), config=STAGE)
    assert result.live == [] and result.vmi_patch == {}


@given(edits)
def test_the_plan_is_stable_once_its_live_part_is_done(changes: list[tuple[str, Any]]) -> None:
    new = apply(template(), changes)
    first = plan_update(vm_of(new), vmi_of(template()), CONFIG, template())
    vmi = apply_merge_patch(vmi_of(template()), first.vmi_patch)
    second = plan_update(vm_of(new), vmi, CONFIG, template())
    assert second.live == [] and second.vmi_patch == {}
    assert second.restart == first.restart
