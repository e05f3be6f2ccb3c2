"""Prometheus metrics under kube-apiserver's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .call import Call
from .hub import Hub
from .store import Store


class Metrics:
    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        registry = self.registry = CollectorRegistry()
        labels = ["verb", "group", "version", "resource", "subresource", "scope"]
        self._requests = Counter(
            "apiserver_request_total",
            "Requests by verb, resource and code.",
            [*labels, "code"],
            registry=registry,
        )
        self._seconds = Histogram(
            "apiserver_request_duration_seconds",
            "How long requests took; watches are not counted.",
            labels,
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._watches = Gauge(
            "apiserver_longrunning_requests", "Watches now open.", ["resource"], registry=registry
        )
        self._objects = Gauge(
            "apiserver_resource_objects", "Stored objects.", ["resource"], registry=registry
        )
        self._revision = Gauge("hotvirt_store_revision", "The newest resourceVersion.", registry=registry)
        self._commits = Gauge(
            "hotvirt_store_commits",
            "Transactions since the start; each holds one or more writes.",
            registry=registry,
        )
        self._children: dict[tuple[str, ...], tuple[Histogram, dict[int, Counter]]] = {}

    def observe(self, call: Call | None, method: str, code: int, seconds: float) -> None:
        if call is None:
            labels = (method, "", "", "", "", "")
        else:
            scope = "resource" if call.name else "namespace" if call.namespace else "cluster"
            kind = call.kind
            labels = (call.verb.upper(), kind.group, kind.version, kind.plural, call.subresource, scope)
        known = self._children.get(labels)
        if known is None:
            known = self._children[labels] = (self._seconds.labels(*labels), {})
        times, counters = known
        counter = counters.get(code)
        if counter is None:
            counter = counters[code] = self._requests.labels(*labels, str(code))
        counter.inc()
        if call is None or call.verb != "watch":
            times.observe(seconds)

    def text(self) -> bytes:
        self._watches.clear()
        for resource, count in self._hub.counts().items():
            self._watches.labels(resource).set(count)
        self._objects.clear()
        for resource in self._store.resources():
            self._objects.labels(resource).set(self._store.count(resource))
        self._revision.set(self._store.revision)
        self._commits.set(self._store.commits)
        return generate_latest(self.registry)
