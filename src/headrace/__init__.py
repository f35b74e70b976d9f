"""Headrace: serve DNNs under latency objectives on the hardware you already own."""

import os

__version__ = "0.1.0"

# ONNX Runtime's wheels report to their maker unless this is set before they are imported, by us or
# by the code of an app: a device id in the user's home, and look-ups of its hosts.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
