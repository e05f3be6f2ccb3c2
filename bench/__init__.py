"""Measurements: one command, ratios within one run."""
