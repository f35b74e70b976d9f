"""Headrace: serve DNNs under latency objectives on the hardware you already own."""

__version__ = "0.1.0"
