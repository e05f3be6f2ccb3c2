"""`hotvirt resize`: what it asks for, what it tells, and how it ends."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hotvirt.cli.main import run
from hotvirt.cli.progress import Outcome, Part, Progress

from .tiny_api import TinyApi, status

GIB = 1 << 30


def vm(generation: int = 1, sockets: int = 4, cores: int = 1, guest: str = "1Gi") -> dict[str, Any]:
    domain = {"cpu": {"sockets": sockets, "cores": cores}, "memory": {"guest": guest}}
    return {
        "metadata": {"name": "a", "namespace": "ns", "generation": generation},
        "spec": {"template": {"spec": {"domain": domain}}},
        "status": {},
    }


def vmi(
    sockets: int = 4,
    granted: int = 4,
    plugged: int = 4,
    has: int = 4,
    condition: tuple[str, str] | None = None,
    observed: int = 2,
    guest: str = "1Gi",
    current: str = "1Gi",
) -> dict[str, Any]:
    conditions = []
    if condition:
        kind, reason = condition
        conditions = [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": f"because of {reason}",
                "observedGeneration": observed,
            }
        ]
    return {
        "metadata": {"name": "a", "namespace": "ns", "generation": 2},
        "spec": {"domain": {"cpu": {"sockets": sockets}, "memory": {"guest": guest}}},
        "status": {
            "phase": "Running",
            "currentCPUTopology": {"sockets": has, "cores": 1, "threads": 1},
            "memory": {"guestCurrent": current},
            "conditions": conditions,
            "hotvirt": {"granted": {"vcpus": granted, "memory": guest}, "vcpus": {"plugged": plugged}},
        },
    }


def cpu(wanted: int = 5) -> Part:
    return Part("cpu", "domain.cpu.sockets", "HotVCPUChange", wanted, f"{wanted} vCPUs")


def memory(wanted: int = 2 * GIB) -> Part:
    return Part("memory", "domain.memory.guest", "HotMemoryChange", wanted, "2Gi of memory")


def restart_required(message: str, observed: int = 1) -> dict[str, Any]:
    machine = vm()
    machine["status"]["conditions"] = [
        {"type": "RestartRequired", "status": "True", "message": message, "observedGeneration": observed}
    ]
    return machine


class TestProgress:
    def test_each_stage_once_and_done_when_no_condition_is_left(self) -> None:
        progress = Progress([cpu()], 1)
        hot = ("HotVCPUChange", "PodResize")
        assert progress.vmi(vmi()) == []
        assert progress.vmi(vmi(5, condition=hot)) == []
        assert progress.vmi(vmi(5, 5, condition=hot)) == [("Pod", "covers 5 vCPUs")]
        assert progress.vmi(vmi(5, 5, 5, condition=hot)) == [("hypervisor", "5 vCPUs plugged")]
        assert progress.vmi(vmi(5, 5, 5, 5, condition=hot)) == [("guest", "5 vCPUs in use")]
        assert progress.outcome is None
        assert progress.vmi(vmi(5, 5, 5, 5)) == []
        assert progress.outcome == Outcome("done", 0, "")

    @pytest.mark.parametrize(
        ("reason", "result", "code"),
        [
            ("PodResizeDeferred", "deferred", 6),
            ("NodeCapacity", "infeasible", 7),
            ("ResourceQuota", "quota", 8),
            ("LimitRange", "quota", 8),
            ("QOSClass", "failed", 1),
        ],
    )
    def test_what_ends_the_waiting(self, reason: str, result: str, code: int) -> None:
        progress = Progress([cpu()], 1)
        assert progress.vmi(vmi(5, condition=("HotVCPUChange", reason))) == [
            ("waits", f"because of {reason}")
        ]
        assert progress.outcome == Outcome(result, code, f"because of {reason}")  # type: ignore[arg-type]  # str

    @pytest.mark.parametrize("reason", ["Paused", "NoGuestAgent", "GuestRefused", "PodResizeError"])
    def test_what_is_only_told(self, reason: str) -> None:
        progress = Progress([cpu()], 1)
        waiting = vmi(5, condition=("HotVCPUChange", reason))
        assert progress.vmi(waiting) == [("waits", f"because of {reason}")]
        assert progress.vmi(waiting) == []
        assert progress.outcome is None

    def test_a_refusal_of_an_older_size_is_not_ours(self) -> None:
        progress = Progress([cpu()], 1)
        assert progress.vmi(vmi(5, condition=("HotVCPUChange", "NodeCapacity"), observed=1)) == []
        assert progress.vmi(vmi(9, condition=("HotVCPUChange", "NodeCapacity"))) == []
        assert progress.outcome is None

    def test_the_live_part_is_awaited_and_the_rest_is_named(self) -> None:
        progress = Progress([cpu(), memory()], 1)
        cause = "domain.memory.guest 1Gi→2Gi: needs a restart, no room"
        assert progress.vm(restart_required(f"hostname b added: needs a restart; {cause}")) == [
            ("restart", cause)
        ]
        assert progress.outcome is None
        progress.vmi(vmi(5, 5, 5, 5))
        assert progress.outcome == Outcome("restartRequired", 5, cause)

    def test_a_restart_for_something_else_or_an_older_edit_does_not_matter(self) -> None:
        progress = Progress([cpu()], 2)
        assert progress.vm(restart_required("hostname b added: needs a restart", observed=2)) == []
        assert progress.vm(restart_required("domain.cpu.sockets 4→9: needs a restart", observed=1)) == []
        progress.vmi(vmi(5, 5, 5, 5))
        assert progress.outcome == Outcome("done", 0, "")

    def test_memory(self) -> None:
        progress = Progress([memory()], 1)
        progress.vmi(vmi(guest="2Gi", current="1Gi", condition=("HotMemoryChange", "GuestPending")))
        assert progress.outcome is None
        progress.vmi(vmi(guest="2Gi", current="2Gi"))
        assert progress.outcome is not None and progress.outcome.result == "done"

    def test_another_edit(self) -> None:
        progress = Progress([cpu()], 2)
        progress.vm(vm(generation=3, sockets=5))
        assert progress.outcome is None
        progress.vm(vm(generation=4, sockets=6))
        assert progress.outcome is not None and "Another edit" in progress.outcome.message

    @pytest.mark.parametrize("change", [{"phase": "Succeeded"}, None])
    def test_a_machine_that_stops(self, change: dict[str, Any] | None) -> None:
        progress = Progress([cpu()], 1)
        machine = vmi()
        machine["status"] |= change or {}
        progress.vmi(machine if change else None)
        assert progress.outcome is not None and progress.outcome.code == 1


class Command:
    """The command against a server, in a thread of its own."""

    def __init__(self, api: TinyApi, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig

    async def __call__(self, *arguments: str) -> int:
        options = ["--kubeconfig", str(self.kubeconfig), "-n", "ns"]
        return await asyncio.to_thread(run, ["resize", "a", *arguments, *options])

    async def patched(self) -> None:
        await self.api.until(lambda: self.api.count("PATCH") == 1)


def in_a_cluster(body: Callable[[Command], Awaitable[None]], tmp_path: Path) -> Callable[[], Awaitable[None]]:
    async def cluster() -> None:
        api = TinyApi()
        async with api.running() as config:
            path = tmp_path / "config"
            path.write_text(
                json.dumps(
                    {
                        "current-context": "c",
                        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                        "clusters": [{"name": "c", "cluster": {"server": config.server}}],
                        "users": [{"name": "u", "user": {}}],
                    }
                )
            )
            await api.put("virtualmachines", vm())
            await body(Command(api, path))
            await api.end_watches()

    return cluster


async def test_wait_tells_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def body(command: Command) -> None:
        api = command.api
        await api.put("virtualmachineinstances", vmi())
        running = asyncio.create_task(command("--cpu", "5", "--wait"))
        await command.patched()
        hot = ("HotVCPUChange", "PodResize")
        for state in (vmi(5, condition=hot), vmi(5, 5, condition=hot), vmi(5, 5, 5, 5)):
            await api.put("virtualmachineinstances", state)
        assert await running == 0
        template = api.objects["virtualmachines", "ns", "a"]["spec"]["template"]["spec"]
        assert template["domain"]["cpu"] == {"sockets": 5, "cores": 1}

    await in_a_cluster(body, tmp_path)()
    stages = [line.split("ms")[1].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert stages == ["asked", "Pod", "hypervisor", "guest", "done"]


async def test_a_size_that_the_machine_has_is_done_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        await command.api.put("virtualmachineinstances", vmi())
        assert await command("--cpu", "4", "--wait", "--timeout", "60s") == 0

    await in_a_cluster(body, tmp_path)()
    assert capsys.readouterr().out.splitlines()[-1].endswith("ms  done")


async def test_a_refusal_has_its_code_and_its_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        await command.api.put("virtualmachineinstances", vmi())
        running = asyncio.create_task(command("--cpu", "5", "--wait", "-o", "json"))
        await command.patched()
        await command.api.end_watches()
        refused = vmi(5, condition=("HotVCPUChange", "ResourceQuota"))
        await command.api.put("virtualmachineinstances", refused)
        assert await running == 8

    await in_a_cluster(body, tmp_path)()
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert (answer["result"], answer["exitCode"], answer["vcpus"]) == ("quota", 8, 5)
    assert [entry["stage"] for entry in answer["timeline"]] == ["asked", "waits"]
    assert told.err == "Error: Because of ResourceQuota.\n"


async def test_time_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def body(command: Command) -> None:
        await command.api.put("virtualmachineinstances", vmi())
        assert await command("--memory", "2Gi", "--wait", "--timeout", "0.2s") == 9

    await in_a_cluster(body, tmp_path)()
    assert "not there after 0.2 s; it goes on." in capsys.readouterr().err


async def test_dry_run_shows_the_servers_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["domain.cpu.sockets 4→5: live, +100m cpu, node has 300m free", 'a "quoted" one']

    async def body(command: Command) -> None:
        await command.api.put("virtualmachineinstances", vmi())

        async def answer(request: web.Request) -> web.StreamResponse | None:
            if request.method != "PATCH":
                return None
            assert request.query["dryRun"] == "All"
            escaped = [text.replace('"', '\\"') for text in plan]
            response = web.json_response(copy.deepcopy(vm()))
            for text in escaped:
                response.headers.add("Warning", f'299 - "{text}"')
            return response

        command.api.interfere = answer
        assert await command("--cpu", "5", "--dry-run") == 0
        assert command.api.objects["virtualmachines", "ns", "a"] == vm() | {
            "metadata": command.api.objects["virtualmachines", "ns", "a"]["metadata"]
        }

    await in_a_cluster(body, tmp_path)()
    assert capsys.readouterr().out.splitlines() == [
        "VM a, 4 → 5 vCPUs (nothing is changed):",
        *(f"  {line}" for line in plan),
    ]


async def test_a_vm_that_does_not_run_has_it_at_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        assert await command("--cpu", "2", "--wait") == 0
        assert await command("--cpu", "3") == 0

    await in_a_cluster(body, tmp_path)()
    told = capsys.readouterr().out
    assert "does not run: it has 2 vCPUs when it starts" in told
    assert "was asked for 2 → 3 vCPUs" in told


async def test_a_vm_whose_machine_has_ended_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        ended = vmi()
        ended["status"]["phase"] = "Succeeded"
        await command.api.put("virtualmachineinstances", ended)
        assert await command("--cpu", "2", "--wait") == 0

    await in_a_cluster(body, tmp_path)()
    assert "does not run: it has 2 vCPUs when it starts" in capsys.readouterr().out


async def test_sizes_that_the_vm_has_by_its_requests_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        requests = {"cpu": "2", "memory": "1Gi"}
        by_requests = vm()
        by_requests["spec"]["template"]["spec"]["domain"] = {"resources": {"requests": requests}}
        await command.api.put("virtualmachines", by_requests)
        assert await command("--cpu", "3", "--memory", "2Gi") == 0

    await in_a_cluster(body, tmp_path)()
    assert "was asked for 2 → 3 vCPUs, 1Gi → 2Gi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Say what to change: --cpu, --memory, or both."),
        (("--cpu", "0"), 2, "0 is not in the range"),
        (
            ("--cpu", "3"),
            2,
            "Each socket of this VM has 2 vCPUs (cores 2 × threads 1): use a multiple of 2, like",
        ),
        (("--memory", "lots"), 2, "'lots' is not a quantity"),
        (("--cpu", "2", "--dry-run", "--wait"), 2, "nothing to --wait for"),
        (("--cpu", "2", "--wait", "--timeout", "soon"), 2, "'soon' is not a duration"),
        (("--memory", "1025Mi"), 1, "use 1Gi or 1026Mi"),
    ],
)
async def test_what_is_refused(
    arguments: tuple[str, ...], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(command: Command) -> None:
        await command.api.put("virtualmachines", vm(cores=2))

        async def refuse(request: web.Request) -> web.StreamResponse | None:
            if request.method == "PATCH":
                return status(422, "Invalid", "1025Mi is not a multiple of 2Mi: use 1Gi or 1026Mi")
            return None

        command.api.interfere = refuse
        assert await command(*arguments) == code

    await in_a_cluster(body, tmp_path)()
    told = capsys.readouterr()
    assert says in told.err
    assert told.out == ""


async def test_no_such_vm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def body(command: Command) -> None:
        await command.api.remove("virtualmachines", "ns", "a")
        assert await command("--cpu", "2") == 4

    await in_a_cluster(body, tmp_path)()
    assert "not found" in capsys.readouterr().err
