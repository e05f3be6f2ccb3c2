"""The log that the tests of resizes rely on: it must find what it is there to find."""

import pytest

from hotvirt.api.quantity import Quantity
from tests.size_log import SizeLog

GIB = 1 << 30


def seen(log: SizeLog, *, request: str, claimed: str, granted: str) -> None:
    requests = {"cpu": "200m", "memory": request}
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "one", "uid": "v"}
    pod = {
        "metadata": {"name": "p", "uid": "p", "ownerReferences": [owner | {"controller": True}]},
        "spec": {"containers": [{"name": "compute", "resources": {"requests": requests}}]},
        "status": {"containerStatuses": [{"name": "compute", "resources": {"requests": requests}}]},
    }
    sizes = {
        name: {"vcpus": 2, "memory": size} for name, size in (("claimed", claimed), ("granted", granted))
    }
    vmi = {
        "metadata": {"name": "one", "uid": "v"},
        "spec": {"domain": {"cpu": {"sockets": 2}, "memory": {"guest": "1Gi"}, "devices": {}}},
        "status": {"hotvirt": sizes},
    }
    log.object("pods", pod)
    log.object("virtualmachineinstances.kubevirt.io", vmi)


def test_a_guest_that_fits_its_pod_is_no_finding():
    log = SizeLog()
    seen(log, request="2Gi", claimed="1Gi", granted="1Gi")
    log.cgroup("p", 2 * GIB)
    log.hypervisor("p", 2, GIB)
    log.check()


@pytest.mark.parametrize(
    ("finding", "request_", "claimed", "granted", "limit", "vcpus"),
    [
        ("do not fit the limit in force", "2Gi", "1Gi", "1Gi", GIB, 2),
        ("not covered by the request", "1Gi", "1Gi", "1Gi", None, 2),
        ("the hypervisor has", "2Gi", "512Mi", "1Gi", None, 2),
        ("the hypervisor has", "2Gi", "1Gi", "1Gi", None, 3),
        ("claimed is 2/2Gi, granted", "4Gi", "2Gi", "1Gi", None, 2),
    ],
)
def test_each_breach_is_found(finding, request_, claimed, granted, limit, vcpus):
    log = SizeLog()
    log.hypervisor("p", vcpus, Quantity("1Gi").value)
    log.cgroup("p", limit)
    seen(log, request=request_, claimed=claimed, granted=granted)
    with pytest.raises(AssertionError, match=finding):
        log.check()


def test_a_log_without_machines_proves_nothing():
    with pytest.raises(AssertionError, match="no machine"):
        SizeLog().check()


def test_from_the_api_alone_the_hypervisor_has_what_is_claimed():
    log = SizeLog(from_api=True)
    seen(log, request="2Gi", claimed="1Gi", granted="1Gi")
    log.check()
    seen(log, request="2Gi", claimed="2Gi", granted="2Gi")
    with pytest.raises(AssertionError, match="not covered by the request"):
        log.check()
