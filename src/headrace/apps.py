"""What an app file imports: `from headrace.apps import app, aside, gather, module, tensor`, …"""

from headrace.serving.apps.api import (
    InvalidInput,
    app,
    aside,
    gather,
    module,
    tensor,
    time_left_us,
)
from headrace.serving.apps.ensembles import ensemble, step

__all__ = [
    "InvalidInput",
    "app",
    "aside",
    "ensemble",
    "gather",
    "module",
    "step",
    "tensor",
    "time_left_us",
]
