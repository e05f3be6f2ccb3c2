"""How a command ends when it cannot do what it was asked: one sentence and an exit code."""

from __future__ import annotations

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    it failed or was refused; the sentence on stderr says why
  2    wrong usage: a flag, an argument, a value
  3    Hotvirt is not running, or its API cannot be reached
  4    there is no such VM or image
  130  interrupted"""


class CliError(Exception):
    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
