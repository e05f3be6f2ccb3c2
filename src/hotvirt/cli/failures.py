"""How a command ends when it cannot do what it was asked: one sentence and an exit code."""

from __future__ import annotations

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
RESTART_REQUIRED = 5
DEFERRED = 6
INFEASIBLE = 7
NO_QUOTA = 8
TIMED_OUT = 9
INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    it failed or was refused; the sentence on stderr says why
  2    wrong usage: a flag, an argument, a value
  3    Hotvirt is not running, or its API cannot be reached
  4    there is no such VM or image
  5    resize --wait: (a part of) it needs a restart of the VM
  6    resize --wait: the node has no room now; it is done when there is
  7    resize --wait: the node can never hold it
  8    resize --wait: a ResourceQuota or LimitRange refuses it; it is done when that allows
  9    resize --wait: it was not done in time; it goes on
  130  interrupted"""


class CliError(Exception):
    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
