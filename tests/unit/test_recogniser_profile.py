"""The demo's model, PP-OCRv4's text recogniser: large enough to find what tiny models hide."""

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model

_package = importlib.util.find_spec("rapidocr_onnxruntime")

pytestmark = pytest.mark.skipif(
    _package is None, reason="needs rapidocr-onnxruntime for its model file"
)


@pytest.fixture
def recogniser() -> Path:
    assert _package is not None
    assert _package.origin is not None
    return Path(_package.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def test_it_has_212_single_tensor_cuts_and_none_in_its_attention_layers(recogniser: Path) -> None:
    cuts = find_cuts(load_graph(recogniser))

    gaps = [b.position - a.position for a, b in pairwise(cuts)]
    assert len(cuts) == 212
    assert max(gaps) == 143
    assert sum(gap > 10 for gap in gaps) == 1


@pytest.mark.lengthy
def test_its_free_shape_is_found_and_its_parts_answer_as_the_whole(
    recogniser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))

    options = ProfileOptions(blocks=6, max_batch=1, budget_s=0.1, stages="none")
    profile = profile_model(recogniser, options)

    assert profile.inputs[0].item_shape == (3, 48, 320)
    assert profile.outputs[0].item_shape == (40, 6625)
    assert len(profile.blocks) == 6
    error = float("\n".join(profile.provenance.notes).split("relative error ")[1].split()[0])
    assert error <= 1e-4
    # Loose on purpose: the suite may share the machine. Equal blocks are 1, one block of all 6.
    times_us = [row[0] for row in profile.block_times[0].p50_us]
    assert max(times_us) / (sum(times_us) / len(times_us)) < 3
