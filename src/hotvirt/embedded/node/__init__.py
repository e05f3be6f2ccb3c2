"""The embedded node: plays the kubelet; Pods are processes of this machine."""
