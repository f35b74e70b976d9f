"""What Triton's clients can ask for and is not served, over HTTP as over gRPC."""

from collections.abc import Callable
from typing import Any

NOT_SERVED: tuple[Callable[[Any], Any], ...] = (
    lambda client: client.load_model("m", config="{}"),
    lambda client: client.unload_model("m"),
    lambda client: client.get_system_shared_memory_status(),
    lambda client: client.register_system_shared_memory("r", "/k", 8),
    lambda client: client.get_cuda_shared_memory_status(),
    lambda client: client.get_trace_settings(),
    lambda client: client.update_trace_settings("m", {"trace_level": ["OFF"]}),
    lambda client: client.get_log_settings(),
)
