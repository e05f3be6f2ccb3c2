"""The Kubernetes API of one machine: what kubectl and the controllers need, on SQLite."""
