"""A guest that has booted: what is said of it, its console, and the way to it through a Service."""

from __future__ import annotations

import asyncio

import pytest

from hotvirt.api import names
from tests.targets.target import wait_until

from .guests import Guest
from .place import Place
from .shell import console_log, wait_for_status

SOON = 120


@pytest.mark.asyncio(loop_scope="session")
class Boot:
    async def test_it_runs_where_its_pod_runs(self, place: Place, main: Guest):
        wait_for_status(place, main.namespace, main.name, "Running", SOON)
        vmi, pod = await main.vmi(), await main.pod()
        assert vmi["status"]["nodeName"] == pod["spec"]["nodeName"] == place.node
        assert vmi["status"]["activePods"] == {pod["metadata"]["uid"]: place.node}
        (interface,) = vmi["status"]["interfaces"]
        assert interface["ipAddress"] == pod["status"]["podIP"]
        assert interface["mac"] == vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"]
        assert pod["spec"].get("automountServiceAccountToken") is False

    async def test_the_console_is_logged_from_the_first_line(self, place: Place, main: Guest):
        # Its web server answers a moment before it says so.
        ready = "hotvirt demo guest ready"
        await asyncio.to_thread(
            wait_until, lambda: ready in console_log(place, main.namespace, main.name), ready
        )
        assert "Linux version" in console_log(place, main.namespace, main.name)

    async def test_the_console_is_a_shell(self, main: Guest):
        assert await main.shell("echo $((6 * 7)); nproc") == "42\n4"

    async def test_a_service_reaches_it_before_and_after_a_resize(self, place: Place, main: Guest):
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": main.namespace},
            "spec": {"selector": {"app": main.name}, "ports": [{"port": 80, "targetPort": 80}]},
        }
        place.apply(service)
        address = place.service_address(place.get("service", "web", "-n", main.namespace), await main.pod())
        before = await main.facts(address)
        assert (before["boot_id"], before["cpus_online"]) == (main.boot, 4)
        await main.edit(2)
        await main.becomes(2, "1Gi")
        after = await main.facts(address)
        assert (after["boot_id"], after["cpus_online"]) == (main.boot, 2)

    async def test_the_pod_is_that_of_a_launcher(self, main: Guest):
        pod = await main.pod()
        assert pod["metadata"]["labels"][names.LABEL_LAUNCHER[0]] == names.LABEL_LAUNCHER[1]
        assert {each["name"] for each in pod["spec"]["containers"]} == {"compute", "guest-console-log"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
