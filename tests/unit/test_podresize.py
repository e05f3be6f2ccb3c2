"""The Pod's side of a resize: every answer of the node and the API, and that refusals are remembered."""

from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api.conditions import Condition
from hotvirt.api.meta import ObjectMeta
from hotvirt.api.pods import Pod, PodStatus
from hotvirt.api.quantity import Quantity
from hotvirt.plan.podresize import (
    Cause,
    Refusal,
    Size,
    Step,
    covers,
    decide,
    differing,
    fallback,
    grows_only,
    is_seen,
    refused_by_api,
    size_of,
    target_size,
)


def size(cpu: str, memory: str = "512Mi", limits: bool = False) -> Size:
    amounts = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return Size(amounts, amounts if limits else {})


OLD, NEW = size("100m"), size("200m")
WORLDS = {Cause.NODE: "full", Cause.QUOTA: "used 3 of 3"}


def look(
    asked: Size, actual: Size | None, *conditions: Condition, refusal: Refusal | None = None, worlds=WORLDS
):
    return decide(
        target=NEW, asked=asked, actual=actual, conditions=conditions, worlds=worlds, refusal=refusal
    )


def test_ask_wait_done():
    asked = look(OLD, OLD)
    assert (asked.step, asked.size) == (Step.ASK, NEW)
    assert look(NEW, OLD).step is Step.WAIT
    assert look(NEW, NEW).step is Step.DONE


def test_the_same_amount_written_differently_is_the_same():
    assert look(size("0.2"), size("0.2")).step is Step.DONE


def test_deferred_and_errors_are_waited_for_and_said():
    deferred = look(NEW, OLD, Condition(type="PodResizePending", reason="Deferred", message="node is full"))
    assert (deferred.step, deferred.reason) == (Step.WAIT, "PodResizeDeferred")
    assert "node is full" in deferred.message
    error = look(NEW, OLD, Condition(type="PodResizeInProgress", reason="Error", message="cgroup"))
    assert (error.step, error.reason) == (Step.WAIT, "PodResizeError")


def test_infeasible_is_taken_back_and_remembered_until_the_node_changes():
    infeasible = Condition(type="PodResizePending", reason="Infeasible", message="not enough cpu")
    verdict = look(NEW, OLD, infeasible)
    assert (verdict.step, verdict.size, verdict.reason) == (Step.REFUSED, OLD, "NodeCapacity")
    assert "not enough cpu" in verdict.message
    again = look(OLD, OLD, refusal=verdict.refusal)
    assert (again.step, again.size) == (Step.REFUSED, None)
    room = look(OLD, OLD, refusal=verdict.refusal, worlds={Cause.NODE: "room"})
    assert room.step is Step.ASK


def test_what_shrinks_goes_on_when_only_the_growth_is_refused():
    both, part = size("300m", "256Mi"), size("100m", "256Mi")
    had = size("100m", "512Mi")
    refusal = Refusal(both, Cause.NODE, "not enough cpu", "full")
    assert fallback(refusal, both, had) == part
    assert fallback(refusal, part, had) is None, "asked for already"
    assert fallback(refusal, part, part) is None
    assert fallback(Refusal(both, Cause.LIMIT_RANGE, "no"), both, had) == had
    assert fallback(Refusal(part, Cause.QUOTA, "no"), had, had) is None, "nothing grows: not asked again"


def test_another_target_is_asked_for_at_once():
    other = Refusal(size("400m"), Cause.NODE, "no", "full")
    assert look(OLD, OLD, refusal=other).step is Step.ASK


def test_refusals_of_the_api_are_told_apart():
    def cause(code: int, message: str, details: dict | None = None) -> Cause:
        return refused_by_api(NEW, WORLDS, code=code, message=message, details=details or {}).cause

    assert cause(403, "pods x is forbidden: exceeded quota: q, requested: …") is Cause.QUOTA
    assert cause(403, "maximum cpu usage per Container is 1, but request is 2.") is Cause.LIMIT_RANGE
    assert cause(403, "no", {"causes": [{"reason": "NodeCapacity"}]}) is Cause.NODE
    assert cause(403, "node didn't have enough allocatable resources: cpu") is Cause.NODE
    assert cause(422, "Pod QOS Class may not change as a result of resizing") is Cause.QOS
    assert cause(403, "you may not") is Cause.OTHER
    quota = refused_by_api(NEW, WORLDS, code=403, message="exceeded quota: q", details={})
    assert (quota.world, quota.message) == ("used 3 of 3", "exceeded quota: q.")


def test_the_shape_of_the_pod_stays():
    wanted = Size({"cpu": Quantity("2"), "memory": Quantity("1Gi")}, {"cpu": Quantity("2")})
    assert target_size(wanted, Size(), Size({"cpu": Quantity("1")})) == Size({"cpu": Quantity("2")})


def test_what_the_guest_still_has_is_never_undercut():
    assert target_size(size("100m"), size("400m"), size("400m")) == size("400m")
    assert target_size(size("100m"), size("100m"), size("400m")) == size("100m")


def test_only_what_can_be_resized_counts():
    resources = {"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}
    assert size_of(resources) == Size({"cpu": Quantity("1")})


def test_covering():
    assert covers(NEW, OLD)
    assert not covers(OLD, NEW)
    assert not covers(None, OLD)


def test_the_patch_names_the_container():
    assert size("1", limits=True).patch("compute") == {
        "spec": {
            "containers": [
                {
                    "name": "compute",
                    "resources": {
                        "requests": {"cpu": "1", "memory": "512Mi"},
                        "limits": {"cpu": "1", "memory": "512Mi"},
                    },
                }
            ]
        }
    }


sizes = st.builds(lambda cpu: size(f"{cpu}00m"), st.integers(1, 4))
conditions = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["PodResizePending", "PodResizeInProgress"]),
        reason=st.sampled_from(["", "Deferred", "Infeasible", "Error"]),
        message=st.just("m"),
    ),
    max_size=2,
)


@given(sizes, sizes, sizes, conditions)
def test_a_refused_target_is_never_asked_for_twice_in_the_same_world(target, asked, actual, seen):
    first = decide(target=target, asked=asked, actual=actual, conditions=seen, worlds=WORLDS)
    if first.step is not Step.REFUSED:
        return
    assert first.refusal is not None
    now = first.size or asked
    then = decide(
        target=target, asked=now, actual=actual, conditions=(), worlds=WORLDS, refusal=first.refusal
    )
    assert then.step is Step.REFUSED
    assert then.size is None


def test_what_differs_is_told_for_each_resource():
    assert differing(OLD, OLD, OLD) == set()
    assert differing(OLD, NEW, OLD) == {"cpu"}
    assert differing(size("100m", "1Gi"), OLD, NEW) == {"cpu", "memory"}
    assert differing(OLD, None, OLD) == {"cpu", "memory"}
    assert differing(size("100m"), size("100m", limits=True)) == {"cpu", "memory"}


def test_only_more_of_everything_is_growth():
    assert grows_only(NEW, OLD)
    assert grows_only(OLD, OLD)
    assert not grows_only(OLD, NEW)
    assert not grows_only(size("200m", "256Mi"), OLD)
    assert not grows_only(size("200m", "256Mi", limits=True), size("100m", limits=True))


def test_a_node_that_tells_which_size_it_has_seen_is_waited_for():
    def pod(observed):
        return Pod(metadata=ObjectMeta(generation=3), status=PodStatus(observed_generation=observed))

    assert not is_seen(pod(2))
    assert is_seen(pod(3))
    assert is_seen(pod(None)), "older nodes do not tell"
