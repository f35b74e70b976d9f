"""What `make gpu-check` compares, where the device errs: it fails."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
torch_model = pytest.importorskip("headrace.executors.torch_model")
from benchmarks.gpu import parts, provision  # noqa: E402

from helpers.late_device import LateDevice, LateStream  # noqa: E402
from helpers.torch_networks import export  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

WIDTH = 160
"""Its square has as many bytes as begin a layer."""


def model_with(*, recorded: int, reads_anew: bool) -> Any:
    """A model of a GPU that has recorded so many graphs, and reads its inputs when it is run, or
    only when it is bound."""

    class Model(torch_model.TorchModel):  # type: ignore[misc, name-defined]
        def __init__(self, content: bytes, weights: Any, device: str) -> None:
            super().__init__(content, weights, "cpu")
            self._keeps = device != "cpu" and not reads_anew

        @property
        def recorded(self) -> int:
            return recorded

        def binding(self, inputs: Any, outputs: Any) -> Any:
            if self._keeps:
                inputs = {name: array.copy() for name, array in inputs.items()}
            return super().binding(inputs, outputs)

    return Model


@pytest.mark.parametrize(
    ("recorded", "reads_anew", "good"), [(2, True, True), (2, False, False), (1, True, False)]
)
def test_graphs_that_read_old_inputs_or_were_not_recorded_are_no_good_answers(
    recorded: int, reads_anew: bool, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    path = export(torch.nn.Tanh().eval(), x, tmp_path / "m.pt2")
    model = model_with(recorded=recorded, reads_anew=reads_anew)
    monkeypatch.setattr(torch_model, "TorchModel", model)
    monkeypatch.setattr(parts, "DEVICE", "cuda")
    told = []
    parts._compare(path, x.numpy(), parts.TOLERANCE, lambda good, figures: told.append(good))
    assert told == [good]


class Reusing(LateDevice):
    """Gives memory again as it was left, as PyTorch's allocator does."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[int, Any] = {}

    def allocate(self, size_bytes: int) -> Any:
        found = self.left.pop(size_bytes, None)
        memory = super().allocate(size_bytes)
        return memory if found is None else memory.copy_(found)

    def give_back(self, memory: Any) -> None:
        self.left[memory.numel()] = memory.clone()
        super().give_back(memory)


@pytest.mark.parametrize(("waits", "result"), [(True, "ok"), (False, "FAILED")])
def test_starts_that_do_not_wait_for_their_copies_answer_something_else(
    waits: bool,
    result: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not waits:
        monkeypatch.setattr(LateStream, "behind", lambda stream, event: None)
    device = Reusing()
    network = provision.opened("two", two, lambda: torch.ones(1, WIDTH), tmp_path, device)
    provision.check_starts(network, rounds=2)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [state for what, state, _ in said if "answer as the network" in what] == [result]


def two() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
