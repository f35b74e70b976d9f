"""Whatever the model and wherever it is cut, the parts compute what the whole does."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.onnx_stage import extract_stage, wire_spec
from headrace.executors.onnx_session import open_session
from headrace.profiling.observe import observe, relative_error
from helpers.onnx_models import chain_model, saved

WIDTH = 6


@st.composite
def skip_lists(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    layers = draw(st.integers(2, 7))
    pairs = [(i, j) for i in range(layers) for j in range(i + 1, layers)]
    return layers, draw(st.lists(st.sampled_from(pairs), max_size=4, unique=True))


@settings(max_examples=40)
@given(
    skip_lists(),
    st.integers(1, 3),
    st.sampled_from(["float32", "float16"]),
    st.integers(0, 9),
    st.data(),
)
def test_a_model_cut_anywhere_answers_as_the_whole_one(
    layers_and_skips: tuple[int, list[tuple[int, int]]],
    max_tensors: int,
    boundary: str,
    seed: int,
    data: st.DataObject,
) -> None:
    layers, skips = layers_and_skips
    x = np.random.default_rng(seed).standard_normal((3, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(chain_model(layers, WIDTH, seed=seed, skips=skips), Path(folder) / "m.onnx")
        graph = load_graph(path)
        wanted = open_session(path).run(["y"], {"x": x})[0]
    observed = observe(graph, {"x": (WIDTH,)}, find_cuts(graph, max_tensors), {"x": x})
    chosen = data.draw(st.sets(st.integers(0, max(0, len(observed.cuts) - 1)), max_size=4))
    cuts = [cut for index, cut in enumerate(observed.cuts) if index in chosen]

    flowing = {"x": x}
    wires = [
        [wire_spec(graph, spec, boundary) for spec in cut.tensors]  # type: ignore[arg-type]
        for cut in cuts
    ]
    for taken, given_up in pairwise([observed.inputs, *wires, observed.outputs]):
        session = open_session(extract_stage(graph, taken, given_up).SerializeToString())
        names = [spec.name for spec in given_up]
        assert [tensor.name for tensor in session.get_inputs()] == list(flowing)
        flowing = dict(zip(names, session.run(names, flowing), strict=True))

    tolerance = 1e-5 if boundary == "float32" else 1e-2
    assert relative_error(flowing["y"], wanted) <= tolerance
