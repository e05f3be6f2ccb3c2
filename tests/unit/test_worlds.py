"""What a refused size depends on: it is asked for again when that changes, and not before."""

from hotvirt.api.core import ResourceQuota
from hotvirt.api.quantity import Quantity
from hotvirt.controllers.resize import _Refused
from hotvirt.controllers.worlds import _quotas
from hotvirt.plan.podresize import Cause, Refusal, Size


def quota(asked: str, counted: str, used: str) -> ResourceQuota:
    def amounts(text: str) -> dict[str, Quantity]:
        return {"requests.memory": Quantity(text)}

    empty = ResourceQuota()
    spec = type(empty.spec)(hard=amounts(asked))
    return ResourceQuota(spec=spec, status=type(empty.status)(hard=amounts(counted), used=amounts(used)))


def test_a_quota_counts_when_its_status_has_followed_its_spec():
    small, edited, counted = (
        quota("1Gi", "1Gi", "1Gi"),
        quota("2Gi", "1Gi", "1Gi"),
        quota("2Gi", "2Gi", "1Gi"),
    )
    assert len({_quotas([each]) for each in (small, edited, counted)}) == 3
    assert _quotas([counted]) == _quotas([quota("2Gi", "2Gi", "1Gi")])


def test_a_refusal_just_after_a_change_may_come_from_before_it():
    size = Size(requests={"memory": Quantity("2Gi")})
    known = _Refused(("default", "one"), "node", Refusal(size, Cause.QUOTA, "exceeded quota.", "small"))
    assert known.changed(Refusal(size, Cause.QUOTA, "exceeded quota.", "larger"))
    assert not known.changed(Refusal(size, Cause.QUOTA, "exceeded quota.", "small"))
    assert not known.changed(Refusal(size, Cause.NODE, "no room.", "larger"))
