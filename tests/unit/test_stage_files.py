"""Stages as files: what they hold, where they are kept, and what is refused."""

import os
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.onnx_stage import Boundary
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError
from headrace.domain.profile import BlockTimes, Profile, Provenance
from headrace.executors.onnx_session import open_session
from headrace.executors.table import measurement
from headrace.profiling.cut_model import cut_model
from headrace.profiling.observe import observe
from headrace.user_cache import cache_folder
from helpers.onnx_models import chain_model, saved


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder


def chain_profile(folder: Path, boundary: Boundary = "float32") -> Profile:
    """Of a chain of three (MatMul, Tanh), cut after each Tanh; times are made up."""
    graph = load_graph(saved(chain_model(layers=3), folder / "chain.onnx"))
    items = {"x": np.zeros((2, 16), np.float32)}
    wanted = [cut for cut in find_cuts(graph) if cut.tensors[0].startswith("h")]
    observed = observe(graph, {"x": (16,)}, wanted, items)
    chain = cut_model(graph, observed, observed.cuts, boundary, measurement("cpu"))
    row = tuple((1,) for _ in chain.blocks)
    return Profile(
        model="chain",
        provenance=Provenance(kind="synthetic", date="2026-01-01"),
        model_path="chain.onnx",
        model_sha256=graph.sha256,
        boundary=boundary,
        inputs=chain.crossings[0],
        outputs=chain.crossings[-1],
        blocks=chain.blocks,
        block_times=(BlockTimes(device="cpu", share=Fraction(1), p50_us=row, p99_us=row),),
    )


@pytest.mark.parametrize(("boundary", "tolerance"), [("float32", 1e-6), ("float16", 1e-2)])
def test_stages_one_after_the_other_compute_what_the_model_does(
    tmp_path: Path, boundary: Boundary, tolerance: float
) -> None:
    profile = chain_profile(tmp_path, boundary)
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)

    flowing = {"x": x}
    for first, end in ((0, 2), (2, 3)):
        session = open_session(stage_path(profile, tmp_path, first, end))
        names = [spec.name for spec in profile.blocks[end - 1].cut]
        flowing = dict(zip(names, session.run(names, flowing), strict=True))

    whole = open_session(tmp_path / "chain.onnx").run(["y"], {"x": x})[0]
    np.testing.assert_allclose(flowing["y"], whole, rtol=0, atol=tolerance)


@pytest.mark.parametrize("damage", ["zeros", "cut", "empty", "no hash"])
def test_a_file_that_is_damaged_is_extracted_again(tmp_path: Path, damage: str) -> None:
    profile = chain_profile(tmp_path)
    path = stage_path(profile, tmp_path, 0, 2)
    content = path.read_bytes()
    match damage:
        case "zeros":
            path.write_bytes(content[:-200] + bytes(100) + content[-100:])
        case "cut":
            path.write_bytes(content[:-1])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.with_suffix(".sha256").unlink()

    assert stage_path(profile, tmp_path, 0, 2).read_bytes() == content
    assert path.with_suffix(".sha256").exists()


def test_a_stage_takes_and_gives_what_the_profile_lists(tmp_path: Path) -> None:
    profile = chain_profile(tmp_path, "float16")

    session = open_session(stage_path(profile, tmp_path, 1, 2))

    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.type) == (profile.blocks[0].cut[0].name, "tensor(float16)")
    assert (given.name, given.type) == (profile.blocks[1].cut[0].name, "tensor(float16)")
    assert taken.shape == ["batch", 16]


def test_half_precision_at_the_boundary_halves_the_bytes_but_not_the_answer(
    tmp_path: Path,
) -> None:
    full, half = (chain_profile(tmp_path, b) for b in ("float32", "float16"))

    assert [block.cut_bytes for block in full.blocks] == [64, 64, 64]
    assert [block.cut_bytes for block in half.blocks] == [32, 32, 64]


def test_a_stage_is_made_once(tmp_path: Path, cache: Path) -> None:
    profile = chain_profile(tmp_path)

    path = stage_path(profile, tmp_path, 0, 2)
    made_at = path.stat().st_mtime_ns

    assert stage_path(profile, tmp_path, 0, 2) == path
    assert path.stat().st_mtime_ns == made_at
    assert path.is_relative_to(cache)
    assert [p.name for p in cache.rglob(".unfinished-*")] == []


def test_different_stages_and_boundaries_have_different_files(tmp_path: Path) -> None:
    full, half = chain_profile(tmp_path), chain_profile(tmp_path, "float16")

    paths = {
        stage_path(profile, tmp_path, first, end)
        for profile in (full, half)
        for first, end in ((0, 1), (1, 2), (2, 3), (0, 2), (1, 3))
    }

    assert len(paths) == 10


def test_a_model_that_changed_since_it_was_profiled_is_refused_even_when_cached(
    tmp_path: Path,
) -> None:
    profile = chain_profile(tmp_path)
    stage_path(profile, tmp_path, 0, 1)
    saved(chain_model(layers=3, seed=1), tmp_path / "chain.onnx")

    with pytest.raises(ModelError, match="is not the model that was profiled"):
        stage_path(profile, tmp_path, 0, 1)


def test_a_model_that_is_gone_is_named_with_a_next_step(tmp_path: Path) -> None:
    profile = chain_profile(tmp_path)
    (tmp_path / "chain.onnx").unlink()

    with pytest.raises(ModelError, match=r"chain\.onnx: cannot be read[\s\S]*headrace profile"):
        stage_path(profile, tmp_path, 0, 1)


def test_a_profile_without_a_model_file_cannot_be_executed(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(chain_profile(tmp_path), model_path=None)

    with pytest.raises(ModelError, match="names no model file"):
        stage_path(profile, tmp_path, 0, 1)


@pytest.mark.parametrize(("first", "end"), [(-1, 1), (1, 1), (2, 4)])
def test_a_range_outside_the_blocks_is_refused(tmp_path: Path, first: int, end: int) -> None:
    with pytest.raises(ModelError, match="its blocks are 0 to 2"):
        stage_path(chain_profile(tmp_path), tmp_path, first, end)


def test_a_cache_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = chain_profile(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "cache"))

    with pytest.raises(ModelError, match="set HEADRACE_CACHE"):
        stage_path(profile, tmp_path, 0, 1)


def test_a_user_whom_the_system_does_not_know_has_a_cache_folder_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("HEADRACE_CACHE", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)

    assert cache_folder() == Path("/.cache/headrace")
