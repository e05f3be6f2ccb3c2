"""Kubernetes APIs to test against: a real kube-apiserver, the embedded one, or that of a kubeconfig."""
