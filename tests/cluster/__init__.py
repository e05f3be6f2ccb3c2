"""Hotvirt on a real Kubernetes cluster: a control plane and a node on this machine, started for the tests.

`bed*.py` is the cluster itself; `hack/cluster` starts and stops one by hand.
"""
