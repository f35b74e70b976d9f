"""Sizes that a PyTorch export was made for: kept, whatever it branches on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.profiling.items import input_specs

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
TorchModel = pytest.importorskip("headrace.executors.torch_model").TorchModel

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]


def answered(path: Path, x: np.ndarray) -> list[float]:
    """By the uncut file, of one output."""
    graph = load_graph(path)
    model = TorchModel(whole_model(graph), graph.weights)
    (answer,) = model.run(graph.outputs, {graph.inputs[0].name: x})
    numbers: list[float] = answer.tolist()
    return numbers


def test_a_length_below_what_was_exported_is_refused(tmp_path: Path) -> None:
    class Branches(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.sum(1) if x.shape[1] > 10 else -x.sum(1)

    length = torch.export.Dim("length", min=11, max=256)
    exported = torch.export.export(Branches(), (torch.zeros(2, 16),), dynamic_shapes=({1: length},))
    torch.export.save(exported, tmp_path / "m.pt2")
    assert answered(tmp_path / "m.pt2", np.ones((2, 11), np.float32)) == [11, 11]
    with pytest.raises(ModelError, match=r"exported for \[2, 11\.\.256\]"):
        answered(tmp_path / "m.pt2", np.ones((2, 5), np.float32))


@pytest.mark.parametrize(
    "length", [torch.export.Dim.AUTO, 2 * torch.export.Dim("half", min=1, max=64)]
)
def test_sizes_that_take_another_branch_than_the_example_are_refused(
    tmp_path: Path, length: Any
) -> None:
    class Parity(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x[:, ::2].sum(1) if x.shape[1] % 2 == 0 else x.amax(1)

    batch = torch.export.Dim("batch", max=8)
    exported = torch.export.export(
        Parity(), (torch.zeros(2, 8),), dynamic_shapes=({0: batch, 1: length},)
    )
    torch.export.save(exported, tmp_path / "m.pt2")
    graph = load_graph(tmp_path / "m.pt2")
    served = [graph.spec("y", "float32", ())]
    assert batch_first(graph, input_specs(graph, {"x": (6,)}), served, batched=True).nodes
    with pytest.raises(ModelError, match=r"\(x\.size\(\)\[1\] % 2\) == 0, which x \[1, 7\]"):
        batch_first(graph, input_specs(graph, {"x": (7,)}), served, batched=True)


def test_an_export_whose_sizes_pytorch_marked_as_free_is_no_code(tmp_path: Path) -> None:
    # PyTorch then keeps its marks with the example's tensors.
    free = {0: torch.export.Dim.DYNAMIC}
    model = torch.nn.Linear(4, 3).eval()
    exported = torch.export.export(model, (torch.zeros(2, 4),), dynamic_shapes=(free,))
    torch.export.save(exported, tmp_path / "m.pt2")

    assert load_graph(tmp_path / "m.pt2").inputs[0].batch_axis == 0


def test_a_multiple_of_a_dimension_has_no_other_size(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.sum(1)

    length = 4 * torch.export.Dim("quarter", max=16)
    exported = torch.export.export(Scaled(), (torch.zeros(2, 8),), dynamic_shapes=({1: length},))
    torch.export.save(exported, tmp_path / "m.pt2")
    assert answered(tmp_path / "m.pt2", np.ones((2, 12), np.float32)) == [12, 12]
    for wrong in (10, 68):
        with pytest.raises(ModelError, match=r"exported for \[2, 0\.\.64 \(4\*n\)\]"):
            answered(tmp_path / "m.pt2", np.ones((2, wrong), np.float32))


def test_a_size_that_is_the_product_of_two_others_is_served_where_it_is(tmp_path: Path) -> None:
    class Rows(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x.reshape(y.shape[0], y.shape[1], 2) + y[:, :, None]

    free = torch.export.Dim.AUTO
    exported = torch.export.export(
        Rows(),
        (torch.zeros(6, 2), torch.zeros(2, 3)),
        dynamic_shapes=({0: free}, {0: free, 1: free}),
    )
    torch.export.save(exported, tmp_path / "m.pt2")
    graph = load_graph(tmp_path / "m.pt2")
    served = [graph.spec(graph.outputs[0], "float32", (2, 4, 2))]

    def inputs(rows: int) -> list[TensorSpec]:
        return [graph.spec("x", "float32", (rows, 2)), graph.spec("y", "float32", (2, 4))]

    assert batch_first(graph, inputs(8), served, batched=False).nodes
    with pytest.raises(ModelError, match="was exported for inputs with"):
        batch_first(graph, inputs(9), served, batched=False)


@pytest.mark.parametrize("time_first", [True, False])
def test_inputs_have_their_batch_where_they_share_its_symbol(
    tmp_path: Path, time_first: bool
) -> None:
    """PyTorch's own layout: `x` [T, N, 4] or [N, T, 4], and a state [1, N, 4] in both."""

    class Recurrent(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, state: Any) -> Any:
            return x.mean(0 if time_first else 1) + state[0]

    batch = torch.export.Dim("batch", min=1, max=64)
    x, at = ((7, 3, 4), 1) if time_first else ((3, 7, 4), 0)
    given = torch.zeros(x), torch.zeros(1, 3, 4)
    free = {at: batch}, {1: batch}
    exported = torch.export.export(Recurrent().eval(), given, dynamic_shapes=free)
    torch.export.save(exported, tmp_path / "m.pt2")
    graph = load_graph(tmp_path / "m.pt2")

    assert [tensor.batch_axis for tensor in graph.inputs] == [at, 1]
    assert [tensor.item_dims for tensor in graph.inputs] == [(7, 4), (1, 4)]
