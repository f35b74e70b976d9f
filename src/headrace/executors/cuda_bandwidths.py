"""What an NVIDIA GPU moves through its second-level cache and its memory, measured by copies.

One tensor is copied to another again and again: both fit into half of the cache, or are many times
as large. The copies are recorded as one CUDA graph, since a machine asks for a copy in about the
time that a small one takes. What lies between two of them is counted with them, about a
microsecond, so the cache's figure is a little low; interference is fitted to features, for
which a factor that all models have in common makes no difference.

No test reaches this file: `make gpu-check PART=shares` is what tries it.
"""

from functools import cache
from statistics import median
from typing import Any

from headrace.executors.base import Bandwidths
from headrace.executors.torch_model import prepare, said

_COPIES = 32
_REPLAYS = 9
_BEYOND = 4
"""Times the cache: each tensor, where it is memory that is measured."""


@cache
def measured_bandwidths(number: int) -> Bandwidths:
    """Of the GPU of this number, by this process, with all of the multiprocessors that it has.

    Raises:
        ModelError: there is no such GPU, or it has no room for two tensors.
    """
    device = f"cuda:{number}"
    prepare(device)
    import torch

    with said(f"GPU {number}: what it moves cannot be measured"):
        whole_bytes = int(torch.cuda.get_device_properties(number).L2_cache_size)
        return Bandwidths(
            cache_bytes=whole_bytes // 2,
            cache_bytes_per_us=_copied_per_us(device, whole_bytes // 4),
            memory_bytes_per_us=_copied_per_us(device, _BEYOND * whole_bytes),
        )


def _copied_per_us(device: str, size_bytes: int) -> float:
    """Bytes read and written in a microsecond of copies of so many bytes."""
    import torch

    source, into = (torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(_COPIES):
            into.copy_(source)
    graph.replay()
    took_us = median(_replay_us(graph) for _ in range(_REPLAYS))
    del graph, source, into
    torch.cuda.empty_cache()  # for what is measured next
    return 2 * size_bytes * _COPIES / took_us


def _replay_us(graph: Any) -> float:
    import torch

    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return max(1e-3, float(began.elapsed_time(ended)) * 1e3)
