"""The three ways to change an object without sending all of it, and the one that our controllers write.

`json.py` is RFC 6902, `merge.py` RFC 7386, `strategic.py` Kubernetes' own, which merges lists by key.
None of them changes its arguments.
"""

from .json import apply_json_patch
from .merge import apply_merge_patch, merge_diff
from .problem import PatchError, PatchTestFailed
from .strategic import apply_strategic_patch

__all__ = [
    "PatchError",
    "PatchTestFailed",
    "apply_json_patch",
    "apply_merge_patch",
    "apply_strategic_patch",
    "merge_diff",
]
