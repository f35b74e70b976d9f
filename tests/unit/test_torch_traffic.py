"""What PyTorch's operators read and write, seen while a model runs."""

from pathlib import Path

import numpy as np
import pytest

from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.domain.errors import ModelError
from helpers.torch_networks import export

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
TorchModel = pytest.importorskip("headrace.executors.torch_model").TorchModel
bytes_of_batches = pytest.importorskip("headrace.executors.torch_traffic").bytes_of_batches

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

WORDS, WIDTH, LENGTH, OUT = 1_000, 64, 8, 32


class Words(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Rows of a table, seen otherwise, multiplied and cut off at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, WIDTH)
        self.matrix = torch.nn.Linear(LENGTH * WIDTH, OUT, bias=False)

    def forward(self, words: object) -> object:
        return torch.relu(self.matrix(self.table(words).reshape(-1, LENGTH * WIDTH)))


def opened(folder: Path) -> tuple[object, str]:
    path = export(Words().eval(), torch.zeros(2, LENGTH, dtype=torch.int64), folder / "words.pt2")
    graph = load_graph(path)
    return TorchModel(whole_model(graph), graph.weights), graph.inputs[0].name


def test_operators_read_their_inputs_and_write_their_outputs_and_views_are_free(
    tmp_path: Path,
) -> None:
    model, name = opened(tmp_path)
    batches = [{name: np.zeros((size, LENGTH), np.int64)} for size in (2, 3)]

    found = bytes_of_batches(model, batches)

    rows, matrix, answer = 4 * LENGTH * WIDTH, 4 * LENGTH * WIDTH * OUT, 4 * OUT
    assert found == [
        [
            2 * size * rows,  # as much of the table as is picked
            size * rows + matrix + size * answer,
            2 * size * answer,
        ]
        for size in (2, 3)
    ]


def test_a_model_that_does_not_run_is_said_to_be_one(tmp_path: Path) -> None:
    model, name = opened(tmp_path)

    with pytest.raises(ModelError, match="PyTorch cannot run the model"):
        bytes_of_batches(model, [{name: np.zeros((2, LENGTH), np.float32)}])
