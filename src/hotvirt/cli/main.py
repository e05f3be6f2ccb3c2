"""`hotvirt`, and `kubectl hotvirt`: the commands, each imported only when it is asked for.

A command must start in well under 200 ms, so nothing here or at the top of a command's module imports
aiohttp, msgspec or the rest of Hotvirt; `api.py` is a small client on the standard library.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from .failures import EXIT_CODES, FAILED, INTERRUPTED, USAGE, CliError

COMMANDS = {
    "up": ("up:up", "Start a Kubernetes API, Hotvirt's controllers and a node on this machine."),
    "down": ("down:down", "Stop Hotvirt on this machine."),
    "status": ("status:status", "Show whether Hotvirt runs here, and its VMs as the guests see themselves."),
    "image": ("image:image", "Bind image names to disks of this machine."),
    "start": ("power:start", "Start a VM."),
    "stop": ("power:stop", "Stop a VM: its power button is pressed, and the guest shuts down."),
    "restart": ("power:restart", "Restart a VM: a new machine with what its spec says now."),
    "pause": ("power:pause", "Freeze a running VM; its memory stays."),
    "unpause": ("power:unpause", "Let a paused VM go on."),
    "soft-reboot": ("power:soft_reboot", "Ask the guest to reboot; the machine stays the same."),
    "resize": ("resize:resize", "Give a VM more or fewer vCPUs or memory, while it runs."),
    "console": ("console:console", "Open the serial console of a VM."),
    "kubeconfig": ("info:kubeconfig", "Print the path of the kubeconfig that `hotvirt up` wrote."),
    "completion": ("info:completion", "Print the script that completes commands and names in your shell."),
    "version": ("info:version", "Print the version."),
}
"""Where each command is, and its line in the list: to show the list, none is imported."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(f".{module}", __package__), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
def cli() -> None:
    """Virtual machines on Kubernetes that change while they run.

    \b
    On this machine, without a cluster:
      hotvirt up --detach                       a Kubernetes API and a node, here
      export KUBECONFIG=$(hotvirt kubeconfig)   your kubectl uses it
      hotvirt image import my/os:1 disk.img     bind an image name to a local disk
      kubectl apply -f examples/01-first-vm.yaml
      hotvirt status
      hotvirt console first                     leave it with ctrl-]
      hotvirt resize first --cpu 2 --wait       while it runs
      hotvirt down                              guests keep running
      hotvirt down --stop-vms                   guests are shut down first

    start, stop, restart, pause, unpause, soft-reboot, resize and console work on any cluster that runs
    Hotvirt: they use --kubeconfig, else KUBECONFIG, else what `hotvirt up` wrote.
    """


def main() -> None:
    program = Path(sys.argv[0]).name
    name = "kubectl hotvirt" if program.startswith("kubectl-") else "hotvirt"
    sys.exit(run(sys.argv[1:], name))


def run(arguments: list[str], name: str = "hotvirt") -> int:
    try:
        result = cli.main(arguments, prog_name=name, complete_var="_HOTVIRT_COMPLETE", standalone_mode=False)
    except CliError as error:
        return complain(str(error), error.code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else name
        return complain(f"{error.format_message().rstrip('.')}. See: {command} --help", USAGE)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return complain("Interrupted.", INTERRUPTED)
    except click.ClickException as error:
        return complain(error.format_message(), error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has had enough; do not let the interpreter complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return result if isinstance(result, int) else 0


def complain(message: str, code: int) -> int:
    click.echo(f"Error: {message}", err=True)
    return code
