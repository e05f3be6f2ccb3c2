"""The containers beside `compute`: what copies disks out of their images, and what all of them may use."""

import os
import subprocess

import pytest

from hotvirt.api import codec
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.platform import Platform
from hotvirt.plan.pod import launcher_pod

CLUSTER = Platform(
    launcher_image="registry.example/launcher:1", image_volumes=False, kvm_resource="devices.kubevirt.io/kvm"
)
GUARANTEED = {"requests": {"cpu": "2", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}}


def made(domain: dict | None = None, disk: dict | None = None, limited=(), **config: object) -> dict:
    container_disk = {"image": "os:1", "imagePullPolicy": "Never"} | (disk or {})
    vmi = codec.convert(
        {
            "metadata": {"name": "one", "namespace": "default", "uid": "u-1"},
            "spec": {
                "domain": {"memory": {"guest": "256Mi"}} | (domain or {}),
                "volumes": [{"name": "system", "containerDisk": container_disk}],
            },
        },
        VirtualMachineInstance,
    )
    return launcher_pod(vmi, ClusterConfig(**config), {}, limited, CLUSTER)


def init(pod: dict, name: str) -> dict:
    return next(each for each in pod["spec"]["initContainers"] if each["name"] == name)


def everyone(pod: dict) -> list[dict]:
    return pod["spec"]["initContainers"] + pod["spec"]["containers"]


def compute(pod: dict) -> dict:
    return pod["spec"]["containers"][0]


def test_a_disk_is_copied_by_its_own_image_to_where_the_launcher_looks():
    pod = made()
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["tools", "disk-system"]
    assert init(pod, "tools")["image"] == "registry.example/launcher:1"
    copying = init(pod, "disk-system")
    assert (copying["image"], copying["imagePullPolicy"]) == ("os:1", "Never")
    assert copying["command"][-2:] == ["/var/run/hotvirt-images/system", "/disk"]
    assert {mount["name"]: mount["mountPath"] for mount in copying["volumeMounts"]} == {
        "tools": "/hotvirt-tools",
        "disk-system": "/var/run/hotvirt-images/system",
    }
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["disk-system"]["emptyDir"] == volumes["tools"]["emptyDir"] == {}
    mount = next(each for each in compute(pod)["volumeMounts"] if each["name"] == "disk-system")
    assert mount == {
        "name": "disk-system",
        "mountPath": "/var/run/hotvirt-images/system",
        "readOnly": True,
    }
    assert not any(each["name"] == "tools" for each in compute(pod)["volumeMounts"])


def test_a_kernel_and_its_initrd_are_copied_together():
    container = {"image": "k:1", "kernelPath": "boot/vmlinuz", "initrdPath": "/boot/initrd"}
    pod = made({"firmware": {"kernelBoot": {"container": container}}})
    assert init(pod, "kernel")["image"] == "k:1"
    assert init(pod, "kernel")["command"][-3:] == [
        "/var/run/hotvirt-images/kernel",
        "/boot/vmlinuz",
        "/boot/initrd",
    ]


def test_nothing_is_copied_where_nothing_is_to_be_copied():
    vmi = codec.convert(
        {
            "metadata": {"name": "one", "namespace": "default", "uid": "u-1"},
            "spec": {
                "domain": {"memory": {"guest": "256Mi"}},
                "volumes": [{"name": "data", "emptyDisk": {"capacity": "1Gi"}}],
            },
        },
        VirtualMachineInstance,
    )
    pod = launcher_pod(vmi, ClusterConfig(), {}, (), CLUSTER)
    assert "initContainers" not in pod["spec"]
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"run", "scratch"}


@pytest.mark.parametrize("size", [4, 3 << 20, (2 << 20) + 777])
@pytest.mark.parametrize("path", ["", "/images/odd $(name) disk.img"])
def test_the_copy_runs_with_nothing_but_busybox(tmp_path, path, size):
    """What the kubelet would run in the disk's image, on a folder that stands for that image."""
    pod = made(disk={"path": path} if path else None)
    image, target = tmp_path / "image", tmp_path / "target"
    source = image / (path.lstrip("/") or "disk/disk.img")
    source.parent.mkdir(parents=True)
    content = os.urandom(size)
    (image / "elsewhere").write_bytes(content)
    source.symlink_to(image / "elsewhere")
    # As the kubelet does: $$ is a dollar.
    argv = [word.replace("$$", "$") for word in init(pod, "disk-system")["command"]]
    assert argv.count("/hotvirt-tools/busybox") == 2
    argv = [word.replace("/hotvirt-tools/busybox", "/bin/busybox") for word in argv]
    argv[-2:] = [str(target), str(image) + argv[-1]]
    subprocess.run(argv, check=True, env={})
    copied = target.joinpath(str(source)[1:])
    assert copied.read_bytes() == content and not copied.is_symlink()


def test_what_is_not_in_the_image_is_said(tmp_path):
    argv = [word.replace("$$", "$") for word in init(made(), "disk-system")["command"]]
    argv = [word.replace("/hotvirt-tools/busybox", "/bin/busybox") for word in argv]
    argv[-2:] = [str(tmp_path), "/no/such/disk"]
    done = subprocess.run(argv, capture_output=True, text=True, env={})
    assert done.returncode != 0
    assert done.stderr.strip() == "stat: can't stat '/no/such/disk': No such file or directory"


def test_every_container_keeps_the_pod_guaranteed():
    pod = made({"resources": GUARANTEED})
    for each in everyone(pod):
        resources = each["resources"]
        for name in ("cpu", "memory"):
            assert resources["requests"][name] == resources["limits"][name]


def test_a_quota_on_limits_is_met_by_every_container():
    for each in everyone(made(limited=("cpu", "memory"))):
        assert set(each["resources"]["limits"]) >= {"cpu", "memory"}
    for each in everyone(made(limited=("memory",))):
        assert "memory" in each["resources"]["limits"] and "cpu" not in each["resources"]["limits"]


@pytest.mark.parametrize("resources", [None, GUARANTEED, {"limits": {"cpu": "50m", "memory": "300Mi"}}])
def test_the_pod_is_never_counted_by_its_init_step(resources):
    """Kubernetes counts the largest init container, or all others together."""
    pod = made({"resources": resources} if resources else None, limited=("memory",))
    for which in ("requests", "limits"):
        for name, amount in compute(pod)["resources"][which].items():
            for each in pod["spec"]["initContainers"]:
                assert Quantity(each["resources"][which].get(name, "0")) <= Quantity(amount)


def test_the_console_log_is_not_throttled_to_a_crawl():
    console_log = made({"resources": GUARANTEED})["spec"]["containers"][1]
    assert Quantity(console_log["resources"]["limits"]["cpu"]) >= Quantity("100m")


def test_kvm_is_asked_for_unless_it_is_emulated():
    resources = compute(made())["resources"]
    assert resources["requests"]["devices.kubevirt.io/kvm"] == "1"
    assert resources["limits"] == {"devices.kubevirt.io/kvm": "1"}
    assert all("devices" not in str(each["resources"]) for each in everyone(made())[:-2])
    assert "kvm" not in str(compute(made(use_emulation=True))["resources"])


def test_every_container_is_what_the_restricted_level_asks_for():
    pod = made()
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for each in everyone(pod):
        security = each["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
    allowed = {"emptyDir", "secret", "persistentVolumeClaim", "configMap", "projected", "downwardAPI"}
    for volume in pod["spec"]["volumes"]:
        assert set(volume) - {"name"} <= allowed
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(pod["spec"])
