"""What PyTorch's operators read and write, seen while a model runs once.

Run one by one, as PyTorch runs them, each operator reads its inputs from memory and writes its
outputs there. Views read and write nothing. What picks rows of a table reads as much as it writes,
not the table.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.executors.base import Arrays
from headrace.executors.torch_model import TorchModel, said

_PICKING = frozenset(["embedding", "gather", "index", "index_select", "take"])


def bytes_of_batches(model: TorchModel, batches: Sequence[Arrays]) -> list[list[int]]:
    """What every operator read and wrote, as `base.OperatorBytes`; views are left out.

    Raises:
        ModelError: the model cannot be run.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, found: list[int]) -> None:
            super().__init__()
            self._found = found

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            moved = _moved(func, list(_tensors([args, kwargs])), list(_tensors(made)))
            if moved:
                self._found.append(moved)
            return made

    watched: list[list[int]] = []
    for feeds in batches:
        watched.append([])
        with said("PyTorch cannot run the model"), Watch(watched[-1]):
            model.run(model.outputs, feeds)
    return watched


def _moved(func: Any, given: Sequence[Any], made: Sequence[Any]) -> int:
    lie_in = {tensor.untyped_storage().data_ptr() for tensor in given}
    written = sum(_bytes(t) for t in made if t.untyped_storage().data_ptr() not in lie_in)
    if not written:
        return 0
    read = sum(map(_bytes, given))
    if func.overloadpacket.__name__ in _PICKING:
        read = min(read, written)
    return read + written


def _bytes(tensor: Any) -> int:
    """What there is of it in memory: of one that was expanded, the part that is repeated."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
