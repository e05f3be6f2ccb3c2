"""`version`, `kubeconfig` and `completion`: what there is to know without talking to anybody."""

from __future__ import annotations

from pathlib import Path

import click

from .failures import UNREACHABLE, CliError
from .options import output_option, state_dir_option
from .output import show


@click.command()
@output_option
def version(output: str | None) -> None:
    """Print the version."""
    from hotvirt import __version__

    if output:
        show({"version": __version__}, output)
    else:
        click.echo(f"hotvirt {__version__}")


@click.command()
@state_dir_option
def kubeconfig(state_dir: Path | None) -> None:
    """Print the path of the kubeconfig that `hotvirt up` wrote.

    \b
    Example:
      export KUBECONFIG=$(hotvirt kubeconfig)
    """
    from hotvirt.embedded.state import StateDir, default_state_dir

    path = StateDir(state_dir or default_state_dir()).kubeconfig
    if not path.exists():
        raise CliError(f"There is no kubeconfig at {path} yet: `hotvirt up` writes it.", UNREACHABLE)
    click.echo(path)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and names in your shell.

    \b
    Example:
      source <(hotvirt completion bash)
    """
    from click.shell_completion import get_completion_class

    from .main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "hotvirt", "_HOTVIRT_COMPLETE").source())
