"""QEMU: its command line, its monitor, the agent in its guests."""
