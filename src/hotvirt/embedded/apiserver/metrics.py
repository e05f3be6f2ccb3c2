"""Prometheus metrics under kube-apiserver's names.

Requests are counted in plain numbers and made into metrics only when somebody asks: they come by the
thousand, the questions every few seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .call import Call
from .hub import Hub
from .store import Store

LABELS: Final = ["verb", "group", "version", "resource", "subresource", "scope"]
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Tally:
    """The requests of one kind: how many by code, and how long they took."""

    __slots__ = ("buckets", "codes", "seconds")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class Metrics(Collector):
    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._tallies: dict[tuple[str, ...], _Tally] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def observe(self, call: Call | None, method: str, code: int, seconds: float) -> None:
        if call is None:
            labels: tuple[str, ...] = (method, "", "", "", "", "")
        else:
            scope = "resource" if call.name else "namespace" if call.namespace else "cluster"
            kind = call.kind
            labels = (call.verb.upper(), kind.group, kind.version, kind.plural, call.subresource, scope)
        tally = self._tallies.get(labels)
        if tally is None:
            tally = self._tallies[labels] = _Tally()
        tally.codes[code] = tally.codes.get(code, 0) + 1
        if call is None or call.verb != "watch":
            tally.buckets[bisect_left(BUCKETS, seconds)] += 1
            tally.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "apiserver_request", "Requests by verb, resource and code.", labels=[*LABELS, "code"]
        )
        durations = HistogramMetricFamily(
            "apiserver_request_duration_seconds",
            "How long requests took; watches are not counted.",
            labels=LABELS,
        )
        for labels, tally in self._tallies.items():
            for code, count in tally.codes.items():
                requests.add_metric([*labels, str(code)], count)
            total, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), tally.buckets, strict=True):
                total += count
                buckets.append((bound, float(total)))
            durations.add_metric(list(labels), buckets, tally.seconds)
        watches = GaugeMetricFamily(
            "apiserver_longrunning_requests", "Watches now open.", labels=["resource"]
        )
        for resource, count in self._hub.counts().items():
            watches.add_metric([resource], count)
        objects = GaugeMetricFamily("apiserver_resource_objects", "Stored objects.", labels=["resource"])
        for resource in self._store.resources():
            objects.add_metric([resource], self._store.count(resource))
        yield from (requests, durations, watches, objects)
        yield GaugeMetricFamily("hotvirt_store_revision", "The newest resourceVersion.", self._store.revision)
        yield CounterMetricFamily(
            "hotvirt_store_commits", "Transactions; each holds one write or more.", self._store.commits
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
