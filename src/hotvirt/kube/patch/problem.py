"""What can be wrong with a patch."""

from __future__ import annotations


class PatchError(ValueError):
    """The patch cannot be applied; the message says why."""


class PatchTestFailed(PatchError):
    """A `test` operation of a JSON patch found something else."""
