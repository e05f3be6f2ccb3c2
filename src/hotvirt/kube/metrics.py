"""Prometheus metrics under the names that client-go gives them, so that existing dashboards work."""

from __future__ import annotations

import functools

from prometheus_client import Counter, Gauge, Histogram

REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
WORK_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)

REQUESTS = Counter(
    "rest_client_requests", "HTTP requests by status code, method and host.", ["code", "method", "host"]
)
REQUEST_DURATION = Histogram(
    "rest_client_request_duration_seconds",
    "Request latency in seconds by verb and host.",
    ["verb", "host"],
    buckets=REQUEST_BUCKETS,
)
RATE_LIMITER_DURATION = Histogram(
    "rest_client_rate_limiter_duration_seconds",
    "Seconds a request waited for the client's own rate limit.",
    ["verb", "host"],
    buckets=REQUEST_BUCKETS,
)
QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that wait in the queue.", ["name"])
QUEUE_ADDS = Counter("workqueue_adds", "Keys added to the queue.", ["name"])
QUEUE_LATENCY = Histogram(
    "workqueue_queue_duration_seconds",
    "Seconds a key waits before work on it begins.",
    ["name"],
    buckets=WORK_BUCKETS,
)
QUEUE_WORK = Histogram(
    "workqueue_work_duration_seconds", "Seconds the work on one key takes.", ["name"], buckets=WORK_BUCKETS
)
QUEUE_RETRIES = Counter("workqueue_retries", "Keys queued again after a failure.", ["name"])
QUEUE_UNFINISHED = Gauge(
    "workqueue_unfinished_work_seconds", "Seconds of work that has begun and has not ended.", ["name"]
)
QUEUE_LONGEST = Gauge(
    "workqueue_longest_running_processor_seconds", "Seconds that the longest running work takes.", ["name"]
)
RECONCILES = Counter(
    "controller_runtime_reconcile", "Reconciliations per controller and result.", ["controller", "result"]
)


@functools.cache
def counter(metric: Counter, *labels: str) -> Counter:
    """The one with these labels. Looking it up each time costs more than counting."""
    return metric.labels(*labels)


@functools.cache
def histogram(metric: Histogram, *labels: str) -> Histogram:
    return metric.labels(*labels)
