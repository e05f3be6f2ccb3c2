"""Sizes: settings, topology, maxima, memory with its overhead, the Pod's resources, a VMI's defaults."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api import codec
from hotvirt.api.core import ResourceQuota
from hotvirt.api.kubevirt import KubeVirt, VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan import memory
from hotvirt.plan.config import ClusterConfig, cluster_config
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.maxima import max_guest, max_sockets
from hotvirt.plan.memory import guest_memory, overhead
from hotvirt.plan.resources import demanded_limits, pod_resources, with_limits_of_others
from hotvirt.plan.topology import MOST_VCPUS, Topology, topology

CONFIG = ClusterConfig()
MIB, GIB = 1 << 20, 1 << 30


def spec_of(**domain: Any) -> VMISpec:
    return codec.convert({"domain": domain}, VMISpec)


def settings(**configuration: Any) -> ClusterConfig:
    return cluster_config(codec.convert({"spec": {"configuration": configuration}}, KubeVirt))


class TestSettings:
    def test_without_an_object_all_is_default(self) -> None:
        assert cluster_config(None) == ClusterConfig() == settings()

    def test_everything_is_read(self) -> None:
        config = settings(
            vmRolloutStrategy="Stage",
            liveUpdateConfiguration={"maxCpuSockets": 8, "maxGuest": "8Gi", "maxHotplugRatio": 2},
            developerConfiguration={"cpuAllocationRatio": 5, "memoryOvercommit": 150},
            cpuRequest="250m",
            additionalGuestMemoryOverheadRatio="1.5",
            imagePullPolicy="Always",
        )
        assert config.stages
        assert (config.max_sockets, config.max_guest, config.max_hotplug_ratio) == (8, Quantity("8Gi"), 2)
        assert (config.cpu_allocation_ratio, config.memory_overcommit) == (5, 150)
        assert (config.cpu_request, config.overhead_ratio) == (Quantity("250m"), Decimal("1.5"))
        assert config.image_pull_policy == "Always"

    def test_zero_and_the_written_down_default_mean_not_set(self) -> None:
        config = settings(
            cpuRequest="100m",
            liveUpdateConfiguration={"maxCpuSockets": 0, "maxHotplugRatio": 0, "maxGuest": "0"},
            developerConfiguration={"cpuAllocationRatio": 0, "memoryOvercommit": 0},
        )
        assert config == ClusterConfig()

    @pytest.mark.parametrize("gate", ["InPlaceHotplug", "HotplugVolumes", "InjectEjectCDROM"])
    def test_gates_of_hotvirt_are_on_until_switched_off(self, gate: str) -> None:
        assert CONFIG.gate(gate)
        assert settings(developerConfiguration={"featureGates": ["VMLiveUpdateFeatures"]}).gate(gate)
        assert not settings(developerConfiguration={"disabledFeatureGates": [gate]}).gate(gate)
        both = {"featureGates": [gate], "disabledFeatureGates": [gate]}
        assert settings(developerConfiguration=both).gate(gate)

    def test_kubevirts_names_are_accepted(self) -> None:
        off = settings(developerConfiguration={"disabledFeatureGates": ["DeclarativeHotplugVolumes"]})
        assert not off.gate("HotplugVolumes") and not off.gate("DeclarativeHotplugVolumes")
        on = settings(developerConfiguration={"featureGates": ["NUMA"]})
        assert on.gate("NUMA") and not CONFIG.gate("NUMA")


class TestTopology:
    @pytest.mark.parametrize(
        ("domain", "expected"),
        [
            ({}, Topology(1, 1, 1)),
            ({"cpu": {"sockets": 2, "cores": 3, "threads": 2}}, Topology(2, 3, 2)),
            ({"cpu": {"cores": 4}}, Topology(1, 4, 1)),
            ({"cpu": {"model": "host-model"}, "resources": {"requests": {"cpu": "3"}}}, Topology(3, 1, 1)),
            ({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1500m"}}}, Topology(2, 1, 1)),
            ({"resources": {"requests": {"cpu": "100m"}}}, Topology(1, 1, 1)),
        ],
    )
    def test_as_kubevirt_defaults_it(self, domain: dict[str, Any], expected: Topology) -> None:
        assert topology(spec_of(**domain).domain) == expected

    def test_vcpus(self) -> None:
        assert Topology(2, 3, 2).vcpus == 12


class TestMaxima:
    def test_precedence_of_sockets(self) -> None:
        plain = spec_of(cpu={"sockets": 2}).domain
        explicit = spec_of(cpu={"sockets": 2, "maxSockets": 3}).domain
        cluster = ClusterConfig(max_sockets=6)
        assert max_sockets(explicit, cluster, 5) == 3
        assert max_sockets(plain, cluster, 5) == 5
        assert max_sockets(plain, cluster) == 6
        assert max_sockets(plain, CONFIG) == 8
        assert max_sockets(plain, ClusterConfig(max_hotplug_ratio=1)) == 2

    def test_precedence_of_memory(self) -> None:
        plain, explicit = (
            spec_of(memory={"guest": "1Gi"}),
            spec_of(memory={"guest": "1Gi", "maxGuest": "2Gi"}),
        )
        cluster = ClusterConfig(max_guest=Quantity("6Gi"))
        assert str(max_guest(explicit, cluster, Quantity("5Gi"))) == "2Gi"
        assert str(max_guest(plain, cluster, Quantity("5Gi"))) == "5Gi"
        assert str(max_guest(plain, cluster)) == "6Gi"
        assert str(max_guest(plain, CONFIG)) == "4Gi"
        assert str(max_guest(plain, ClusterConfig(max_hotplug_ratio=100))) == "8Gi"
        assert str(max_guest(plain, ClusterConfig(max_guest=Quantity("1Pi")))) == "16Ti"

    def test_a_small_guest_has_headroom_only_when_asked_for(self) -> None:
        small = spec_of(memory={"guest": "512Mi"})
        assert max_guest(small, CONFIG) is None
        assert str(max_guest(small, ClusterConfig(max_guest=Quantity("8Gi")))) == "8Gi"
        assert str(max_guest(spec_of(memory={"guest": "512Mi", "maxGuest": "1Gi"}), CONFIG)) == "1Gi"

    def test_a_cluster_maximum_below_the_size_gives_no_headroom(self) -> None:
        assert max_sockets(spec_of(cpu={"sockets": 4}).domain, ClusterConfig(max_sockets=2)) == 4
        assert max_guest(spec_of(memory={"guest": "2Gi"}), ClusterConfig(max_guest=Quantity("1Gi"))) is None

    @given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 4), st.integers(1, 16))
    def test_never_fewer_than_it_has_and_never_too_many_by_ratio(
        self, sockets: int, cores: int, threads: int, ratio: int
    ) -> None:
        domain = spec_of(cpu={"sockets": sockets, "cores": cores, "threads": threads}).domain
        most = max_sockets(domain, ClusterConfig(max_hotplug_ratio=ratio))
        assert most >= sockets
        assert most == sockets or most * cores * threads <= MOST_VCPUS

    @given(st.integers(16 * MIB, 64 * GIB), st.integers(1, 8))
    def test_memory_headroom_can_be_plugged_whole(self, size: int, ratio: int) -> None:
        spec = spec_of(memory={"guest": str(size)})
        most = max_guest(spec, ClusterConfig(max_hotplug_ratio=ratio))
        if most is not None:
            assert most > guest_memory(spec)
            assert most.value % memory.ALIGNMENT == 0
            assert most.value <= size * ratio


class TestMemory:
    @pytest.mark.parametrize(
        ("domain", "expected"),
        [
            ({"memory": {"guest": "1Gi"}, "resources": {"requests": {"memory": "2Gi"}}}, "1Gi"),
            ({"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}}}, "2Gi"),
            ({"resources": {"limits": {"memory": "3Gi"}}}, "3Gi"),
            ({"memory": {"hugepages": {"pageSize": "2Mi"}}}, "2Mi"),
            ({}, "0"),
        ],
    )
    def test_what_the_guest_sees(self, domain: dict[str, Any], expected: str) -> None:
        assert str(guest_memory(spec_of(**domain))) == expected

    def test_the_formula(self) -> None:
        spec = spec_of(
            cpu={"sockets": 1, "maxSockets": 4},
            memory={"guest": "1Gi"},
            devices={"autoattachGraphicsDevice": False},
        )
        bare = memory.BASE + memory.HELPERS + 4 * memory.PER_VCPU + GIB // 512
        assert overhead(spec, CONFIG, "kvm") == Quantity.bytes(bare)
        assert overhead(spec, CONFIG, "tcg") == Quantity.bytes(bare + memory.TRANSLATION_BUFFER)
        assert overhead(spec, CONFIG) == overhead(spec, CONFIG, "tcg")
        doubled = ClusterConfig(overhead_ratio=Decimal(2))
        assert overhead(spec, doubled, "kvm") == Quantity.bytes(2 * bare)

    @given(st.integers(1, 8), st.integers(1, 8))
    def test_vcpus_come_and_go_without_a_change_of_the_overhead(self, one: int, other: int) -> None:
        sizes = {
            overhead(spec_of(cpu={"sockets": sockets, "maxSockets": 8}, memory={"guest": "1Gi"}))
            for sockets in (one, other)
        }
        assert len(sizes) == 1

    @given(st.integers(16 * MIB, 64 * GIB), st.integers(0, 8 * GIB))
    def test_more_guest_memory_never_needs_less_beside_it(self, size: int, more: int) -> None:
        small, large = spec_of(memory={"guest": str(size)}), spec_of(memory={"guest": str(size + more)})
        assert overhead(small) <= overhead(large)


class TestPodResources:
    def test_memory_is_the_guests_plus_the_overhead_and_cpu_a_share(self) -> None:
        spec = spec_of(cpu={"sockets": 2}, memory={"guest": "1Gi"})
        resources = pod_resources(spec, CONFIG)
        assert resources == {
            "requests": {"cpu": Quantity("200m"), "memory": Quantity("1Gi") + overhead(spec, CONFIG)},
            "limits": {},
        }

    def test_what_the_user_sets_goes_first(self) -> None:
        given_resources = {
            "requests": {"cpu": "1", "memory": "512Mi", "example.com/gpu": "1"},
            "limits": {"cpu": "2", "memory": "2Gi", "example.com/gpu": "1"},
        }
        spec = spec_of(cpu={"sockets": 2}, memory={"guest": "1Gi"}, resources=given_resources)
        extra = overhead(spec, CONFIG)
        assert pod_resources(spec, CONFIG) == {
            "requests": {
                "cpu": Quantity(1),
                "memory": Quantity("512Mi") + extra,
                "example.com/gpu": Quantity(1),
            },
            "limits": {"cpu": Quantity(2), "memory": Quantity("2Gi") + extra, "example.com/gpu": Quantity(1)},
        }

    def test_limits_that_a_quota_demands(self) -> None:
        spec = spec_of(cpu={"sockets": 2}, memory={"guest": "1Gi"})
        bare, full = pod_resources(spec, CONFIG), pod_resources(spec, CONFIG, ("cpu", "memory"))
        assert full["requests"] == bare["requests"]
        assert full["limits"] == {"cpu": Quantity(2), "memory": bare["requests"]["memory"] * 2}
        own = spec_of(memory={"guest": "1Gi"}, resources={"limits": {"cpu": "500m", "memory": "2Gi"}})
        assert pod_resources(own, CONFIG, ("cpu", "memory")) == pod_resources(own, CONFIG)

    def test_limits_of_a_limit_range_stay_until_they_are_outgrown(self) -> None:
        spec = spec_of(cpu={"sockets": 4}, memory={"guest": "1Gi"})
        needs, has = pod_resources(spec, CONFIG), {"cpu": Quantity("500m"), "memory": Quantity("2Gi")}
        assert with_limits_of_others(needs, has, spec, CONFIG)["limits"] == has
        large = spec_of(cpu={"sockets": 8}, memory={"guest": "3Gi"})
        needs = pod_resources(large, CONFIG)
        assert with_limits_of_others(needs, has, large, CONFIG)["limits"] == needs["requests"]
        own = spec_of(memory={"guest": "1Gi"}, resources={"limits": {"memory": "1Gi"}})
        needs = pod_resources(own, CONFIG)
        assert with_limits_of_others(needs, {"memory": Quantity("8Gi")}, own, CONFIG) == needs

    def test_which_limits_quotas_demand(self) -> None:
        quotas = [
            codec.convert({"spec": {"hard": {name: "1"}}}, ResourceQuota)
            for name in ("requests.cpu", "limits.memory", "pods")
        ]
        assert demanded_limits(quotas) == {"memory"}
        assert demanded_limits([]) == frozenset()

    def test_a_limit_below_the_guest_is_raised_to_it(self) -> None:
        for given_resources, request in (
            ({"limits": {"memory": "512Mi"}}, "1Gi"),
            ({"requests": {"memory": "512Mi"}, "limits": {"memory": "512Mi"}}, "1Gi"),
            ({"requests": {"memory": "256Mi"}, "limits": {"memory": "512Mi"}}, "256Mi"),
        ):
            spec = spec_of(memory={"guest": "1Gi"}, resources=given_resources)
            extra, resources = overhead(spec, CONFIG), pod_resources(spec, CONFIG)
            assert resources["limits"]["memory"] == Quantity("1Gi") + extra
            assert resources["requests"]["memory"] == Quantity(request) + extra

    @given(st.integers(1, 64), st.integers(100, 300), st.sets(st.sampled_from(["cpu", "memory"])))
    def test_a_limit_always_covers_guest_and_overhead(
        self, blocks: int, overcommit: int, limited: set[str]
    ) -> None:
        config = ClusterConfig(memory_overcommit=overcommit)
        spec = spec_of(memory={"guest": f"{blocks * 128}Mi"})
        limits = pod_resources(spec, config, limited)["limits"]
        assert limits.keys() == limited
        if "memory" in limits:
            assert limits["memory"] >= guest_memory(spec) + overhead(spec, config)

    def test_a_limit_alone_is_the_request_too(self) -> None:
        spec = spec_of(
            cpu={"sockets": 4},
            memory={"guest": "1Gi"},
            resources={"limits": {"memory": "2Gi", "cpu": "200m"}},
        )
        resources = pod_resources(spec, CONFIG)
        assert resources["requests"] == resources["limits"]

    def test_overcommit(self) -> None:
        spec = spec_of(memory={"guest": "3Gi"})
        request = pod_resources(spec, ClusterConfig(memory_overcommit=150))["requests"]["memory"]
        assert request == Quantity("2Gi") + overhead(spec, CONFIG)
        without = spec_of(memory={"guest": "1Gi"}, resources={"overcommitGuestOverhead": True})
        assert pod_resources(without, CONFIG)["requests"]["memory"] == Quantity("1Gi")

    def test_hugepages_take_the_place_of_the_guests_memory(self) -> None:
        spec = spec_of(memory={"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}})
        resources = pod_resources(spec, CONFIG)
        assert resources["limits"] == {"hugepages-2Mi": Quantity("1Gi")}
        assert resources["requests"]["hugepages-2Mi"] == Quantity("1Gi")
        assert resources["requests"]["memory"] == overhead(spec, CONFIG)

    @pytest.mark.parametrize(("setting", "expected"), [("250m", "250m"), ("100m", "400m")])
    def test_the_clusters_cpu_request(self, setting: str, expected: str) -> None:
        spec = spec_of(cpu={"sockets": 4}, memory={"guest": "1Gi"})
        assert str(pod_resources(spec, settings(cpuRequest=setting))["requests"]["cpu"]) == expected

    @given(
        st.integers(1, 16), st.integers(16 * MIB, 64 * GIB), st.booleans(), st.booleans(), st.integers(1, 100)
    )
    def test_the_guest_always_fits_and_the_shape_never_depends_on_the_size(
        self, sockets: int, size: int, limited: bool, pinned: bool, ratio: int
    ) -> None:
        resources: dict[str, Any] = {}
        if limited:
            resources["limits"] = {"memory": str(size + GIB)}
        if pinned:
            resources.setdefault("limits", {})["cpu"] = "1"
        spec = spec_of(cpu={"sockets": sockets}, memory={"guest": str(size)}, resources=resources)
        config = ClusterConfig(cpu_allocation_ratio=ratio)
        made = pod_resources(spec, config)
        needed = guest_memory(spec) + overhead(spec, config)
        assert made["requests"]["memory"] >= needed
        assert set(made["limits"]) == set(resources.get("limits", {}))
        for name, limit in made["limits"].items():
            assert limit >= made["requests"][name]
            if name == "memory":
                assert limit >= needed


class TestDefaults:
    def test_everything_that_it_runs_with_is_filled_in(self) -> None:
        filled = vmi_defaults(
            {
                "domain": {
                    "memory": {"guest": "1Gi"},
                    "machine": None,
                    "devices": {"disks": [{"name": "a"}]},
                },
                "volumes": [{"name": "a"}, {"name": "b"}],
            },
            CONFIG,
        )
        assert filled == {
            "domain": {
                "memory": {"guest": "1Gi", "maxGuest": "4Gi"},
                "cpu": {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 4},
                "machine": {"type": "q35"},
                "devices": {
                    "disks": [
                        {"name": "a", "disk": {"bus": "virtio"}},
                        {"name": "b", "disk": {"bus": "virtio"}},
                    ],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "volumes": [{"name": "a"}, {"name": "b"}],
            "networks": [{"name": "default", "pod": {}}],
            "terminationGracePeriodSeconds": 30,
        }

    def test_what_was_written_stays(self) -> None:
        written = {
            "domain": {
                "cpu": {"sockets": 2, "cores": 1, "threads": 1, "maxSockets": 3, "model": "host-model"},
                "memory": {"guest": "1024Mi", "maxGuest": "2Gi"},
                "machine": {"type": "pc-q35-7.2"},
                "clock": {"utc": {}},
                "devices": {
                    "autoattachPodInterface": False,
                    "disks": [
                        {"name": "cd", "cdrom": {"bus": "scsi"}},
                        {"name": "l", "lun": {"bus": "scsi"}},
                    ],
                },
            },
            "terminationGracePeriodSeconds": 0,
        }
        before = copy.deepcopy(written)
        assert vmi_defaults(written, CONFIG) == before
        assert written == before

    def test_the_bus_follows_the_kind(self) -> None:
        disks = [{"name": "a", "cdrom": {}}, {"name": "b", "lun": {}}, {"name": "c", "disk": {}}]
        filled = vmi_defaults({"domain": {"devices": {"disks": disks}}}, CONFIG)
        assert filled["domain"]["devices"]["disks"] == [
            {"name": "a", "cdrom": {"bus": "sata"}},
            {"name": "b", "lun": {"bus": "scsi"}},
            {"name": "c", "disk": {"bus": "virtio"}},
        ]

    @given(st.sampled_from(["512Mi", "1Gi", "3Gi"]), st.integers(1, 8), st.integers(1, 4))
    def test_filling_in_twice_changes_nothing(self, guest: str, sockets: int, cores: int) -> None:
        spec = {"domain": {"memory": {"guest": guest}, "cpu": {"sockets": sockets, "cores": cores}}}
        once = vmi_defaults(spec, CONFIG)
        assert vmi_defaults(once, CONFIG) == once
