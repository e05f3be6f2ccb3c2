"""Carries out the resizes of one Pod: decides on what is asked for, then brings the cgroup there."""

from __future__ import annotations

from collections.abc import Callable

from hotvirt.api.pods import Pod

from . import resize
from .cgroups import CgroupError
from .runtime import PodRuntime
from .sizes import Amounts, SizeFile, asked_sizes
from .status import Knowledge

Event = Callable[[str, str, str], None]
"""type, reason, message"""


class Resizer:
    def __init__(self, sizes: SizeFile, known: Knowledge, event: Event) -> None:
        self._sizes = sizes
        self._known = known
        self._event = event
        self._refusal: resize.Refusal | None = None
        self._refused_generation = 0
        self._unsaved = False

    def save(self) -> None:
        """What was done, if it was not noted yet."""
        if self._unsaved:
            self._sizes.save()
            self._unsaved = False

    @property
    def deferred(self) -> bool:
        return self._refusal is not None and self._refusal.reason == resize.DEFERRED

    @property
    def must_actuate(self) -> bool:
        return self._sizes.allocated != self._sizes.actual

    def allocate(self, pod: Pod, used: Amounts, allocatable: Amounts) -> None:
        if not self._sizes.actual:  # the node was killed between the start of the Pod and its note of it
            self._sizes.actual = dict(self._sizes.allocated)
            self._sizes.save()
        asked, generation = asked_sizes(pod), pod.metadata.generation
        if asked == self._sizes.allocated:
            self._refuse(None, generation)
        elif not self._infeasible_still(generation):
            refusal = resize.why_not_resize(pod.spec, asked, self._sizes.allocated, used, allocatable)
            if refusal and (refusal != self._refusal or generation != self._refused_generation):
                text = resize.event_message(refusal.reason, pod, asked, generation, refusal.message)
                self._event("Warning", f"Resize{refusal.reason}", text)
            self._refuse(refusal, generation)
            if refusal is None:
                self._sizes.allocated, self._sizes.generation = asked, generation
                self._sizes.save()
                self._event(
                    "Normal", "ResizeStarted", resize.event_message("started", pod, asked, generation)
                )
        if not self.must_actuate:
            self._known.resize_in_progress = None
        elif self._known.resize_in_progress is None:
            self._known.resize_in_progress = resize.in_progress(self._sizes.generation)
        self._known.allocated = self._sizes.allocated

    def _infeasible_still(self, generation: int) -> bool:
        """The kubelet drops such a resize: only another size is looked at again."""
        refused = self._refusal
        return bool(
            refused and refused.reason == resize.INFEASIBLE and self._refused_generation == generation
        )

    def _refuse(self, refusal: resize.Refusal | None, generation: int) -> None:
        self._refusal, self._refused_generation = refusal, generation
        self._known.resize_pending = resize.pending(refusal, generation) if refusal else None

    def actuate(self, pod: Pod, runtime: PodRuntime) -> bool:
        """False when it has to be tried again; the condition says why."""
        sizes = self._sizes
        error = resize.memory_in_the_way(runtime, pod, sizes.actual, sizes.allocated)
        if not error:
            try:
                runtime.resize(*resize.limits_of(pod, sizes.allocated))
            except CgroupError as refused:
                error = f"failed to resize: {refused}"
        if error:
            before = self._known.resize_in_progress
            if before is None or before.reason != "Error":
                text = resize.event_message("error", pod, sizes.allocated, sizes.generation, error)
                self._event("Warning", "ResizeError", text)
            self._known.resize_in_progress = resize.in_progress(sizes.generation, error)
            return False
        sizes.actual = dict(sizes.allocated)
        self._unsaved = True
        self._known.resize_in_progress = None
        text = resize.event_message("completed", pod, sizes.actual, sizes.generation)
        self._event("Normal", "ResizeCompleted", text)
        return True
