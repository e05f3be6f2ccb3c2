"""Virtual machines on Kubernetes that change while they run, in place."""

__version__ = "0.1.0"
