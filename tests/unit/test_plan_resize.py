"""Changes of size: bounds, the amounts that users set for the Pod, the order of steps, room, and that the Pod
covers the guest at every step.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hotvirt.api import codec
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.headroom import NodeRoom, QuotaRoom, Surroundings
from hotvirt.plan.live import UpdatePlan, plan_update
from hotvirt.plan.memory import boot_memory, guest_memory, overhead
from hotvirt.plan.resources import Resources, pod_resources, qos_class
from hotvirt.plan.topology import topology
from hotvirt.plan.validate import validate_vmi

CONFIG = ClusterConfig()
MIB, GIB = 1 << 20, 1 << 30


def template(sockets: int = 1, guest: str = "1Gi", **domain: Any) -> dict[str, Any]:
    size = {"cpu": {"sockets": sockets, "maxSockets": 8}, "memory": {"guest": guest, "maxGuest": "16Gi"}}
    return {"domain": size | domain}


def vm_of(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    marks = {f"hotvirt.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {
        "metadata": {"name": "a"},
        "spec": {"runStrategy": "Always", "template": {"metadata": {"annotations": marks}, "spec": spec}},
    }


def running(spec: dict[str, Any], status: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    """A VMI that was started from this template."""
    marks = {f"hotvirt.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    connected = [{"type": "AgentConnected", "status": "True"}]
    return {
        "metadata": {"name": "a", "annotations": marks},
        "spec": vmi_defaults(spec, CONFIG),
        "status": {"phase": "Running", "conditions": connected} | (status or {}),
    }


def merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def told(plan: UpdatePlan) -> tuple[list[str], list[str]]:
    return [change.message for change in plan.live], [cause.message for cause in plan.restart]


class TestMemory:
    def test_up_and_down_between_boot_and_maximum(self) -> None:
        start = template(guest="1Gi")
        grown = plan_update(vm_of(template(guest="3Gi")), running(start), CONFIG, start)
        assert told(grown) == (["domain.memory.guest 1Gi→3Gi: live, +2052Mi memory"], [])
        assert grown.vmi_patch == {"spec": {"domain": {"memory": {"guest": "3Gi"}}}}
        vmi = running(start, {"memory": {"guestAtBoot": "1Gi"}})
        vmi = merged(vmi, grown.vmi_patch)
        shrunk = plan_update(vm_of(start), vmi, CONFIG, start)
        assert told(shrunk) == (
            ["domain.memory.guest 3Gi→1Gi: live, -2052Mi memory once the guest has let go"],
            [],
        )

    def test_below_boot_only_with_min_guest(self) -> None:
        start, less = template(guest="2Gi"), template(guest="512Mi")
        without = plan_update(vm_of(less), running(start), CONFIG, start)
        assert without.live == []
        assert "hotvirt.io/min-guest: 512Mi" in without.restart_message
        marked = plan_update(vm_of(less, min_guest="512Mi"), running(start, min_guest="512Mi"), CONFIG, start)
        assert marked.restart == [] and [change.new for change in marked.live] == ["512Mi"]

    def test_min_guest_that_is_set_later_counts_from_the_next_start(self) -> None:
        start, less = template(guest="2Gi"), template(guest="512Mi")
        plan = plan_update(vm_of(less, min_guest="512Mi"), running(start), CONFIG, start)
        assert plan.live == []
        assert "counts from the next start" in plan.restart_message
        assert plan.restart[-1].field == "spec.template.metadata.annotations[hotvirt.io/min-guest]"

    def test_what_the_machine_says_about_its_boot_goes_first(self) -> None:
        start = template(guest="2Gi")
        vmi = running(start, {"hotvirt": {"memory": {"boot": GIB}}})
        assert plan_update(vm_of(template(guest="1Gi")), vmi, CONFIG, start).restart == []

    def test_movable_memory_has_a_cap(self) -> None:
        start = template(guest="1Gi")
        most = plan_update(vm_of(template(guest="8Gi")), running(start), CONFIG, start)
        assert most.restart == []
        more = plan_update(vm_of(template(guest="9Gi")), running(start), CONFIG, start)
        assert "more than 8Gi is too much for a guest that booted with 1Gi" in more.restart_message

    def test_a_small_guest_grows_to_an_explicit_maximum(self) -> None:
        start = {"domain": {"memory": {"guest": "256Mi", "maxGuest": "1Gi"}}}
        new = {"domain": {"memory": {"guest": "512Mi", "maxGuest": "1Gi"}}}
        assert plan_update(vm_of(new), running(start), CONFIG, start).restart == []
        start, new = ({"domain": {"memory": {"guest": size}}} for size in ("256Mi", "512Mi"))
        assert "without room for more" in (
            plan_update(vm_of(new), running(start), CONFIG, start).restart_message
        )

    def test_huge_pages_wait(self) -> None:
        pages = {"hugepages": {"pageSize": "2Mi"}, "maxGuest": "4Gi"}
        start, new = (template(memory={"guest": size} | pages) for size in ("1Gi", "2Gi"))
        assert "huge pages" in plan_update(vm_of(new), running(start), CONFIG, start).restart_message

    @pytest.mark.parametrize(
        ("guest", "least", "boot"),
        [("2Gi", None, "2Gi"), ("2Gi", "512Mi", "512Mi"), ("2Gi", "500Mi", "512Mi")],
    )
    def test_boot_memory_is_in_whole_blocks(self, guest: str, least: str | None, boot: str) -> None:
        assert boot_memory(Quantity(guest).value, least) == Quantity(boot).value


class TestTold:
    def test_a_paused_machine(self) -> None:
        vmi = running(template(), {"conditions": [{"type": "Paused", "status": "True"}]})
        plan = plan_update(vm_of(template(2)), vmi, CONFIG, template())
        assert told(plan)[0] == ["domain.cpu.sockets 1→2: live, +100m cpu, done when the machine is unpaused"]

    def test_fewer_vcpus_without_an_agent(self) -> None:
        vmi = running(template(2), {"conditions": []})
        (message,) = told(plan_update(vm_of(template(1)), vmi, CONFIG, template(2)))[0]
        assert message.endswith("waits for the guest agent, which is not connected")

    def test_the_gate(self) -> None:
        off = ClusterConfig(disabled_gates=frozenset({"InPlaceHotplug"}))
        plan = plan_update(vm_of(template(2, "2Gi")), running(template()), off, template())
        assert plan.live == [] and plan.restart_message.count("InPlaceHotplug is off") == 2


class TestResources:
    def amounts(self, cpu: str, memory: str, limits: bool = True) -> dict[str, Any]:
        given = {"cpu": cpu, "memory": memory}
        return {"requests": given} | ({"limits": given} if limits else {})

    def test_more_for_the_pod_alone(self) -> None:
        start = template(resources={"requests": {"memory": "1Gi"}})
        new = template(resources={"requests": {"memory": "2Gi"}})
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert told(plan) == (["domain.resources.requests.memory 1Gi→2Gi: live, +1Gi memory"], [])
        assert plan.vmi_patch == {"spec": {"domain": {"resources": {"requests": {"memory": "2Gi"}}}}}

    def test_a_request_may_come_and_go(self) -> None:
        start, new = template(), template(resources={"requests": {"cpu": "2"}})
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert told(plan) == (["domain.resources.requests.cpu 2 added: live, +1900m cpu"], [])
        back = plan_update(vm_of(start), merged(running(start), plan.vmi_patch), CONFIG, start)
        assert back.vmi_patch == {"spec": {"domain": {"resources": {"requests": {"cpu": None}}}}}
        assert told(back) == (["domain.resources.requests.cpu 2 removed: live, -1900m cpu"], [])

    def test_they_follow_the_guest(self) -> None:
        start = template(guest="1Gi", resources=self.amounts("1", "1Gi"))
        new = template(guest="2Gi", resources=self.amounts("1", "1Gi"))
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert told(plan) == (
            ["domain.memory.guest 1Gi→2Gi: live, +1026Mi memory, +1026Mi memory limit"],
            [],
        )
        asked = {"memory": "2Gi"}
        assert plan.vmi_patch["spec"]["domain"]["resources"] == {"requests": asked, "limits": asked}

    def test_what_was_edited_is_taken_as_written(self) -> None:
        start = template(guest="1Gi", resources=self.amounts("1", "1Gi"))
        new = template(guest="2Gi", resources=self.amounts("1", "3Gi"))
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        asked = {"memory": "3Gi"}
        assert plan.vmi_patch["spec"]["domain"]["resources"] == {"requests": asked, "limits": asked}

    def test_a_request_that_follows_the_guest_stays_within_an_edited_limit(self) -> None:
        start = template(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}})
        new = template(guest="3Gi", resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "3584Mi"}})
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert plan.restart_message == ""
        asked = {"requests": {"memory": "3584Mi"}, "limits": {"memory": "3584Mi"}}
        assert plan.vmi_patch["spec"]["domain"]["resources"] == asked

    def test_a_change_of_the_quality_of_service_waits(self) -> None:
        start = template(resources=self.amounts("1", "1Gi"))
        new = copy.deepcopy(start)
        new["domain"]["resources"] = {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"cpu": "2", "memory": "1Gi"},
        }
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert plan.live == []
        assert "from Guaranteed to Burstable" in plan.restart_message

    def test_the_guest_grows_while_an_edit_of_the_limits_waits(self) -> None:
        start = template(resources={"requests": {"memory": "1Gi"}})
        new = template(guest="2Gi", resources={"requests": {"memory": "1Gi"}, "limits": {"cpu": "2"}})
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert [change.field for change in plan.live] == ["spec.template.spec.domain.memory.guest"]
        assert [cause.field for cause in plan.restart] == ["spec.template.spec.domain.resources.limits.cpu"]
        assert plan.vmi_patch["spec"]["domain"]["resources"] == {"requests": {"memory": "2Gi"}}

    def test_an_overcommitted_request_stays_one_when_the_guest_shrinks(self) -> None:
        resources = {"requests": {"memory": "1Gi"}}
        start, new = (template(guest=size, resources=resources) for size in ("4Gi", "1Gi"))
        vmi = running(start, min_guest="512Mi")
        plan = plan_update(vm_of(new, min_guest="512Mi"), vmi, CONFIG, start)
        assert plan.vmi_patch["spec"]["domain"]["resources"] == {"requests": {"memory": "256Mi"}}

    def test_other_resources_wait(self) -> None:
        start = template(resources={"requests": {"example.com/gpu": "1"}})
        new = template(resources={"requests": {"example.com/gpu": "2"}})
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert [cause.field[-15:] for cause in plan.restart] == ["example.com/gpu"]


class TestRoom:
    def message(self, new: dict[str, Any], around: Surroundings) -> str:
        (message,) = told(plan_update(vm_of(new), running(template(4)), CONFIG, template(4), around))[0]
        return message.removeprefix("domain.").partition(": ")[2]

    def node(self, cpu: str = "300m", memory: str = "3221225471") -> NodeRoom:
        whole = {"cpu": Quantity("4"), "memory": Quantity("8Gi")}
        return NodeRoom("n1", whole, {"cpu": Quantity(cpu), "memory": Quantity(memory)})

    def test_on_the_node(self) -> None:
        enough = Surroundings(self.node())
        assert self.message(template(5), enough) == "live, +100m cpu, node has 300m free"
        assert self.message(template(4, "2Gi"), enough) == "live, +1026Mi memory, node has 3071Mi free"
        full = Surroundings(self.node("100m", "-1"))
        assert (
            self.message(template(7), full)
            == "live, +300m cpu, node n1 lacks 200m: waits until there is room"
        )
        assert "node n1 lacks 1026Mi" in self.message(template(4, "2Gi"), full)
        assert (
            self.message(template(4, "8Gi"), full).partition("memory, ")[2]
            == "node n1 can never hold it, it has 8Gi in all"
        )

    def test_in_the_quotas(self) -> None:
        quotas = (
            QuotaRoom("wide", {"requests.cpu": Quantity("2"), "pods": Quantity(3)}),
            QuotaRoom("tight", {"cpu": Quantity("150m"), "limits.cpu": Quantity(0)}),
        )
        around = Surroundings(quotas=quotas)
        assert self.message(template(5), around) == "live, +100m cpu, quota tight has 150m of cpu left"
        assert (
            self.message(template(6), around)
            == "live, +200m cpu, quota tight lacks 50m of cpu: waits until there is room"
        )

    def test_limits_that_only_the_pod_has_are_kept_up(self) -> None:
        spec = codec.convert(running(template(4))["spec"], VMISpec)
        both = frozenset({"cpu", "memory"})
        pod = pod_resources(spec, CONFIG, both)
        around = Surroundings(quotas=(QuotaRoom("q", {"limits.cpu": Quantity(2)}),), pod=pod, own_limits=both)
        assert (
            self.message(template(5), around)
            == "live, +100m cpu, +1 cpu limit, quota q has 2 of limits.cpu left"
        )

    def test_a_pod_that_is_already_larger_needs_less(self) -> None:
        spec = codec.convert(running(template(5))["spec"], VMISpec)
        around = Surroundings(self.node(), pod=pod_resources(spec, CONFIG))
        assert self.message(template(5), around) == "live"


class TestSteps:
    def test_grow_outside_in_and_shrink_inside_out(self) -> None:
        start = template(1, "4Gi")
        vmi = running(start, min_guest="1Gi")
        plan = plan_update(vm_of(template(2, "2Gi"), min_guest="1Gi"), vmi, CONFIG, start)
        assert [str(step).partition("→")[0] for step in plan.steps] == [
            "Pod cpu 100m",
            "guest vCPUs 1",
            "guest memory 4Gi",
            "Pod memory 4297Mi",
        ]
        assert [step.grows for step in plan.steps] == [True, True, False, False]

    def test_a_pod_that_stays(self) -> None:
        start, new = (template(sockets, resources={"requests": {"cpu": "4"}}) for sockets in (1, 2))
        plan = plan_update(vm_of(new), running(start), CONFIG, start)
        assert [str(step) for step in plan.steps] == ["guest vCPUs 1→2"]


amounts = st.sampled_from([None, "512Mi", "1Gi", "2Gi", "3Gi", "8Gi"])
cpus = st.sampled_from([None, "100m", "1", "2"])


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    guest = draw(st.integers(4, 32)) * 128 * MIB
    resources: dict[str, Any] = {"requests": {}, "limits": {}}
    for name, values in (("memory", amounts), ("cpu", cpus)):
        request, limit = draw(values), draw(values)
        if request and limit and Quantity(request) > Quantity(limit):
            request, limit = limit, request
        resources["requests"] |= {name: request} if request else {}
        resources["limits"] |= {name: limit} if limit else {}
    return template(draw(st.integers(1, 8)), str(Quantity.bytes(guest)), resources=resources)


configs = st.sampled_from(
    [CONFIG, ClusterConfig(memory_overcommit=150), ClusterConfig(cpu_allocation_ratio=1)]
)


def check_covered(state: VMISpec, pod: Resources, config: ClusterConfig, overcommitted: bool) -> None:
    needed = guest_memory(state) + overhead(state, config)
    limit = pod["limits"].get("memory")
    assert limit is None or needed <= limit
    assert overcommitted or needed <= pod["requests"]["memory"]


def with_size(spec: VMISpec, of: VMISpec, resource: str) -> VMISpec:
    """The spec with the other's vCPUs or memory."""
    plain, other = codec.builtins(spec), codec.builtins(of)
    part, name = ("cpu", "sockets") if resource == "cpu" else ("memory", "guest")
    plain["domain"][part][name] = other["domain"][part][name]
    return codec.convert(plain, VMISpec)


def overcommits(spec: VMISpec, config: ClusterConfig) -> bool:
    given = spec.domain.resources
    request = given.requests.get("memory") if given else None
    limit = given.limits.get("memory") if given else None
    return bool(request and request < guest_memory(spec)) or (
        not request and not limit and config.memory_overcommit > 100
    )


@given(sizes(), sizes(), configs)
def test_step_by_step_the_pod_covers_the_guest(
    start: dict[str, Any], new: dict[str, Any], config: ClusterConfig
) -> None:
    vmi = running(start, min_guest="512Mi")
    plan = plan_update(vm_of(new, min_guest="512Mi"), vmi, config, start)
    before = codec.convert(vmi["spec"], VMISpec)
    after = codec.convert(merged(vmi, plan.vmi_patch)["spec"], VMISpec)
    has, needs = pod_resources(before, config), pod_resources(after, config)
    assert validate_vmi(merged(vmi, plan.vmi_patch), config) == []
    assert qos_class(has) == qos_class(needs)
    assert has["limits"].keys() == needs["limits"].keys()
    overcommitted = overcommits(before, config) or overcommits(after, config)
    state, pod = before, copy.deepcopy(has)
    check_covered(state, pod, config, overcommitted)
    for step in plan.steps:
        if step.where == "Pod":
            for part in ("requests", "limits"):
                if step.resource in needs[part]:
                    pod[part][step.resource] = needs[part][step.resource]
        else:
            state = with_size(state, after, step.resource)
        check_covered(state, pod, config, overcommitted)
    assert (topology(state.domain), guest_memory(state)) == (topology(after.domain), guest_memory(after))
    assert pod["requests"]["memory"] == needs["requests"]["memory"]


@given(sizes(), sizes(), configs)
def test_a_plan_that_is_done_leaves_nothing_live_and_a_revert_leaves_nothing(
    start: dict[str, Any], new: dict[str, Any], config: ClusterConfig
) -> None:
    vmi = running(start, {"memory": {"guestAtBoot": start["domain"]["memory"]["guest"]}}, min_guest="512Mi")
    wanted = vm_of(new, min_guest="512Mi")
    first = plan_update(wanted, vmi, config, start)
    done = merged(vmi, first.vmi_patch)
    again = plan_update(wanted, done, config, start)
    assert (again.vmi_patch, again.live, again.steps) == ({}, [], [])
    assert {cause.field for cause in first.restart} <= {cause.field for cause in again.restart}
    back = plan_update(vm_of(start, min_guest="512Mi"), done, config, start)
    assert back.restart == []
    reverted = merged(done, back.vmi_patch)
    assert plan_update(vm_of(start, min_guest="512Mi"), reverted, config, start) == UpdatePlan()
    old, new_spec = (codec.convert(each["spec"], VMISpec) for each in (vmi, reverted))
    assert pod_resources(old, config) == pod_resources(new_spec, config)


@given(sizes(), st.lists(st.tuples(sizes(), st.booleans()), min_size=1, max_size=10), configs)
def test_after_any_number_of_edits_the_last_one_counts(
    start: dict[str, Any], edits: list[tuple[dict[str, Any], bool]], config: ClusterConfig
) -> None:
    """However many of the edits between were seen in time."""
    first = vmi = running(start, min_guest="512Mi")
    for edit, seen in edits:
        edit["domain"]["resources"] = start["domain"]["resources"]
        if seen:
            plan = plan_update(vm_of(edit, min_guest="512Mi"), vmi, config, start)
            vmi = merged(vmi, plan.vmi_patch)
    last = vm_of(edits[-1][0], min_guest="512Mi")
    alone = plan_update(last, first, config, start)
    assume(not alone.restart)
    in_steps = merged(vmi, plan_update(last, vmi, config, start).vmi_patch)
    assert in_steps["spec"] == merged(first, alone.vmi_patch)["spec"]
