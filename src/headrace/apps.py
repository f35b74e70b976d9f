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

__all__ = ["InvalidInput", "app", "aside", "gather", "module", "tensor", "time_left_us"]
