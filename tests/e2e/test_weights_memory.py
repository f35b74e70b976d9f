"""What a large model takes of memory, counted by the system in processes of their own."""

from pathlib import Path

import pytest
from benchmarks.models.weights_memory import LAYER_BYTES, TARGET, build, measure

LAYERS = 16


@pytest.mark.e2e
@pytest.mark.lengthy
def test_profiling_and_serving_take_no_more_than_the_weights_and_a_third(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    build(path, LAYERS)

    found = measure(path, LAYERS)

    weights = LAYERS * LAYER_BYTES
    grown = {what: (m["peak_bytes"] - m["base_bytes"]) / weights for what, m in found.items()}
    assert set(grown) == {"profile", "worker"}
    # What a large model would not show: the interpreter, and that one tensor is a 16th of this one.
    assert all(0.9 < ratio <= TARGET for ratio in grown.values()), grown
