"""`hotvirt image`: what an image name in a manifest means on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import NOT_FOUND, CliError
from .options import output_option, state_dir_option
from .output import show, size, table

if TYPE_CHECKING:
    from hotvirt.embedded.images import ImageStore


@click.group()
def image() -> None:
    """Bind image names to disks of this machine.

    \b
    Examples:
      hotvirt image import my/os:1 disk.img     raw or qcow2
      hotvirt image ls
      hotvirt image rm my/os:1

    A manifest then names `my/os:1` as a containerDisk; each VM gets a copy-on-write disk of its own.
    """


def store(state_dir: Path | None, *, make: bool = False) -> ImageStore:
    from hotvirt.embedded.images import ImageStore
    from hotvirt.embedded.state import StateDir, StateError, default_state_dir

    state = StateDir(state_dir or default_state_dir())
    try:
        if make:
            state.prepare()
        else:
            state.exists()
    except StateError as error:
        raise CliError(str(error)) from error
    return ImageStore(state.images)


@image.command("import")
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@output_option
@state_dir_option
def import_(name: str, file: Path, output: str | None, state_dir: Path | None) -> None:
    """Import FILE as the image NAME. A second import under the same name replaces the first; VMs that run
    keep what they have.

    FILE is a raw or qcow2 disk, or a folder or tar of files for a kernelBoot image.
    """
    from hotvirt.embedded.images import ImageError

    try:
        found = store(state_dir, make=True).import_image(name, file)
    except ImageError as error:
        raise CliError(str(error)) from error
    if output:
        show(asdict(found), output)
    else:
        click.echo(f"{found.name} imported ({found.format or found.kind}, {size(found.size)})")


@image.command()
@output_option
@state_dir_option
def ls(output: str | None, state_dir: Path | None) -> None:
    """List the images."""
    found = store(state_dir).list()
    if output:
        show([asdict(one) for one in found], output)
        return
    if not found:
        click.echo("There are no images yet. Import one: hotvirt image import my/os:1 disk.img", err=True)
        return
    rows = [
        [one.name, one.format or one.kind, size(one.size), size(one.virtual_size), one.imported_at]
        for one in found
    ]
    table(["NAME", "FORMAT", "SIZE", "VIRTUAL SIZE", "IMPORTED"], rows)


@image.command()
@click.argument("name")
@state_dir_option
def rm(name: str, state_dir: Path | None) -> None:
    """Remove an image. VMs that run keep their files."""
    from hotvirt.embedded.images import ImageError

    try:
        removed = store(state_dir).remove(name)
    except ImageError as error:
        raise CliError(str(error)) from error
    if not removed:
        raise CliError(f"There is no image {name}. `hotvirt image ls` shows what there is.", NOT_FOUND)
    click.echo(f"{name} removed")
