"""What Hotvirt does, written once and run where it runs: on one machine and on a real cluster.

A scenario is a class here. `tests/embedded/test_scenarios.py` and `tests/cluster/test_scenarios.py` say which
classes run there; only the `place` differs (`place.py`).
"""
