"""The launcher Pod, against the table in docs/architecture.md."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api import codec
from hotvirt.api.core import PersistentVolumeClaim, Pod
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.machine import MachineError, from_json, machine_for
from hotvirt.plan.pod import label_value, launcher_pod, machine_in, pod_name
from hotvirt.plan.podresize import Size, asked_size

CONFIG = ClusterConfig()


def vmi(spec: dict | None = None, **metadata: object) -> VirtualMachineInstance:
    base = {
        "domain": {"cpu": {"sockets": 1, "maxSockets": 4}, "memory": {"guest": "256Mi"}},
        "volumes": [{"name": "system", "containerDisk": {"image": "hotvirt/demo-guest:latest"}}],
    }
    return codec.convert(
        {
            "metadata": {"name": "one", "namespace": "default", "uid": "u-1", **metadata},
            "spec": base | (spec or {}),
        },
        VirtualMachineInstance,
    )


def made(machine: VirtualMachineInstance, claims: dict | None = None) -> dict:
    return launcher_pod(machine, CONFIG, claims or {})


def container(pod: dict, name: str = "compute") -> dict:
    return next(each for each in pod["spec"]["containers"] if each["name"] == name)


def mounts(pod: dict) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}


def volumes(pod: dict) -> dict[str, dict]:
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


def test_the_name_follows_from_the_uid():
    assert pod_name(vmi()) == pod_name(vmi())
    assert pod_name(vmi()) != pod_name(vmi(uid="u-2"))
    assert pod_name(vmi()).startswith("virt-launcher-one-")
    assert len(pod_name(vmi())) == len("virt-launcher-one-") + 5
    assert len(pod_name(vmi(name="x" * 253))) <= 253


def test_the_machine_can_be_read_from_its_pod():
    domain = {"cpu": {"sockets": 2, "maxSockets": 4}, "memory": {"guest": "256Mi"}}
    data = {"userData": "echo $HOME $(date) $$"}
    wanted = vmi({"domain": domain, "volumes": [{"name": "seed", "cloudInitNoCloud": data}]})
    pod = codec.convert(made(wanted), Pod)
    assert machine_in(pod) == machine_for(wanted)
    assert machine_in(Pod()) is None
    broken = made(wanted)
    container(broken)["env"][0]["value"] = '{"name": 1}'
    assert machine_in(codec.convert(broken, Pod)) is None


def test_it_is_the_vmis_and_runs_once():
    pod = made(vmi())
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("VirtualMachineInstance", "u-1", True)
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["readinessGates"] == [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}]
    assert codec.convert(pod, Pod).spec.containers[0].name == "compute"


def test_the_machine_is_in_the_environment():
    pod = made(vmi())
    variable = container(pod)["env"][0]
    assert variable["name"] == "HOTVIRT_MACHINE"
    machine = from_json(variable["value"])
    assert (machine.name, machine.cpu.max_sockets, machine.memory.boot) == ("one", 4, 256 << 20)
    assert container(pod)["command"] == ["hotvirt-launcher", "run"]
    assert container(pod)["lifecycle"]["preStop"]["exec"]["command"] == ["hotvirt-launcher", "stop"]
    assert container(pod, "guest-console-log")["command"] == ["hotvirt-launcher", "console-log"]


def test_volumes_are_mounted_where_the_launcher_looks():
    pod = made(
        vmi(
            {
                "domain": {
                    "memory": {"guest": "256Mi"},
                    "firmware": {
                        "kernelBoot": {"container": {"image": "k:1", "kernelPath": "/boot/vmlinuz"}}
                    },
                },
                "volumes": [
                    {"name": "system", "containerDisk": {"image": "os:1", "imagePullSecret": "puller"}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c1", "readOnly": True}},
                    {"name": "made", "dataVolume": {"name": "dv1"}},
                    {"name": "blocks", "persistentVolumeClaim": {"claimName": "c2"}},
                    {"name": "empty", "emptyDisk": {"capacity": "1Gi"}},
                    {
                        "name": "init",
                        "cloudInitNoCloud": {
                            "secretRef": {"name": "s1"},
                            "networkDataSecretRef": {"name": "s2"},
                        },
                    },
                ],
            }
        ),
        {"c2": codec.convert({"spec": {"volumeMode": "Block"}}, PersistentVolumeClaim)},
    )
    assert mounts(pod) == {
        "run": "/var/run/hotvirt",
        "scratch": "/var/run/hotvirt-scratch",
        "kernel": "/var/run/hotvirt-images/kernel",
        "disk-system": "/var/run/hotvirt-images/system",
        "claim-data": "/var/run/hotvirt-claims/data",
        "claim-made": "/var/run/hotvirt-claims/made",
        "secret-init": "/var/run/hotvirt-secrets/init/userdata",
        "secret-net-init": "/var/run/hotvirt-secrets/init/networkdata",
    }
    assert container(pod)["volumeDevices"] == [
        {"name": "claim-blocks", "devicePath": "/var/run/hotvirt-claims/blocks"}
    ]
    found = volumes(pod)
    assert found["disk-system"]["image"] == {"reference": "os:1"}
    assert found["claim-data"]["persistentVolumeClaim"] == {"claimName": "c1", "readOnly": True}
    assert found["claim-made"]["persistentVolumeClaim"] == {"claimName": "dv1"}
    assert found["secret-init"]["secret"] == {"secretName": "s1"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "puller"}]


@pytest.mark.parametrize(("given", "expected"), [(None, 32), (180, 182), (0, 1)])
def test_the_pod_outlives_the_guests_grace(given, expected):
    spec = {} if given is None else {"terminationGracePeriodSeconds": given}
    assert made(vmi(spec))["spec"]["terminationGracePeriodSeconds"] == expected


def test_labels_of_the_tenant_pass_and_those_of_the_system_do_not():
    labels = made(
        vmi(
            labels={
                "app": "web",
                "example.com/tier": "front",
                "kubevirt.io/domain": "one",
                "kubevirt.io": "posing",
                "kubevirt.io/created-by": "somebody-else",
                "kubevirt.io/nodeName": "node-9",
                "pod-security.kubernetes.io/enforce": "privileged",
            }
        )
    )["metadata"]["labels"]
    assert labels == {
        "app": "web",
        "example.com/tier": "front",
        "kubevirt.io/domain": "one",
        "kubevirt.io": "virt-launcher",
        "kubevirt.io/created-by": "u-1",
        "vm.kubevirt.io/name": "one",
        "vmi.kubevirt.io/id": "one",
    }


def test_annotations_pass_by_name_only():
    annotations = made(
        vmi(annotations={"example.com/note": "x", "descheduler.alpha.kubernetes.io/evict": "true"})
    )["metadata"]["annotations"]
    assert annotations["descheduler.alpha.kubernetes.io/evict"] == "true"
    assert annotations["kubevirt.io/domain"] == "one"
    assert int(annotations["kubevirt.io/memory-overhead-bytes"]) > 64 << 20
    assert "example.com/note" not in annotations


def test_the_limits_that_a_quota_demanded_are_noted():
    def noted(machine: VirtualMachineInstance, *limited: str) -> Size:
        return asked_size(codec.convert(launcher_pod(machine, CONFIG, {}, limited), Pod), "compute")

    assert noted(vmi()).own_limits == frozenset()
    both = noted(vmi(), "cpu", "memory")
    assert both.own_limits == both.limits.keys() == {"cpu", "memory"}
    domain = {"memory": {"guest": "256Mi"}, "resources": {"limits": {"memory": "1Gi"}}}
    assert noted(vmi({"domain": domain}), "cpu", "memory").own_limits == {"cpu"}


def test_placement_is_copied():
    placement = {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "schedulerName": "other",
        "priorityClassName": "high",
        "hostname": "web-1",
        "subdomain": "web",
    }
    spec = made(vmi(placement))["spec"]
    assert {key: spec[key] for key in placement} == placement


def test_the_console_log_keeps_the_pods_quality_of_service():
    resources = {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    pod = made(vmi({"domain": {"memory": {"guest": "256Mi"}, "resources": resources}}))
    for each in pod["spec"]["containers"]:
        assert each["resources"]["requests"] == each["resources"]["limits"]
    plain = made(vmi())
    assert "limits" not in container(plain, "guest-console-log")["resources"]


def test_what_no_machine_can_be_built_of_is_said():
    with pytest.raises(MachineError, match="volume odd"):
        made(vmi({"volumes": [{"name": "odd", "hostDisk": {"path": "/x", "type": "Disk"}}]}))


def test_the_pod_is_plain_json():
    pod = made(vmi())
    assert json.loads(codec.encode(pod)) == json.loads(json.dumps(pod))


@given(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?\Z"))
def test_a_name_of_any_length_is_a_label_value(name):
    value = label_value(name)
    assert len(value) <= 63
    assert value[0].isalnum() and value[-1].isalnum()
    assert value == name or len(name) > 63
