"""Arrays as PyTorch's tensors, and back; the memory is shared where that is possible.

PyTorch and numpy do not take each other's bfloat16, so it goes over as its bits.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BFLOAT16 = "bfloat16"


def tensor_of(array: NDArray[Any]) -> Any:
    """A tensor on the CPU. What is not in order is copied, and so is what cannot be written to:
    PyTorch has no such tensors."""
    import torch

    array = np.asarray(array, order="C")
    array = array if array.flags.writeable else array.copy()
    if array.dtype.name != _BFLOAT16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def array_of(tensor: Any) -> NDArray[Any]:
    """The array of a tensor on any device."""
    import torch

    tensor = tensor.cpu()
    if tensor.dtype != torch.bfloat16:
        array: NDArray[Any] = tensor.numpy()
        return array
    import ml_dtypes

    return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))


_FEW = 8


def copy_without_waiting(numbers: Any, device: Any) -> Any:
    """A tensor of the CPU on a device. A few numbers, such as a shape, go there as arguments of
    what writes them: a copy would wait for the device, and a CUDA graph cannot record it."""
    import torch

    if numbers.numel() > _FEW:
        return numbers.to(device)
    there = torch.empty(numbers.shape, dtype=numbers.dtype, device=device)
    places = there.view(-1)
    for place, number in enumerate(numbers.flatten().tolist()):
        places[place].fill_(number)
    return there
