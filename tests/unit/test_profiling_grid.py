"""Batch sizes that need not be measured: which, and what is said of them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.domain.errors import ModelError
from headrace.profiling.grid import filled, sizes_to_measure
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import chain_model, saved


@given(
    start=st.floats(1, 100),
    slope=st.floats(0.1, 10),
    largest=st.integers(1, 200),
    tolerance=st.floats(0.001, 0.1),
)
def test_a_line_needs_its_ends_its_middle_and_those_of_its_halves(
    start: float, slope: float, largest: int, tolerance: float
) -> None:
    sizes = sizes_to_measure(lambda size: start + slope * size, largest, tolerance)

    assert len(sizes) == min(5, largest)
    assert {1, largest} <= set(sizes)


@settings(max_examples=60)
@given(bends=st.lists(st.tuples(st.integers(1, 64), st.floats(0, 50)), max_size=4))
def test_every_gap_that_is_left_was_right_in_its_middle(bends: list[tuple[int, float]]) -> None:
    asked: list[int] = []

    def took(size: int) -> float:
        asked.append(size)
        return 10 + size + sum(step for at, step in bends if size >= at)

    sizes = sizes_to_measure(took, 64, 0.05)

    assert sorted(asked) == sorted(set(asked)) == list(sizes)
    times = filled(sizes, [round(1000 * took(size)) for size in sizes], 64)
    for size in sizes:
        assert times[size - 1] == round(1000 * took(size))


def test_a_step_is_found_where_it_is() -> None:
    sizes = sizes_to_measure(lambda size: 10.0 if size <= 21 else 40.0, 64, 0.02)

    assert {21, 22} <= set(sizes)
    assert len(sizes) < 25


def test_a_curve_that_crosses_its_line_in_the_middle_is_not_taken_for_it() -> None:
    def took(size: int) -> float:
        return 100 + 10 * size + (size - 1) * (size - 16) * (size - 32) / 50

    sizes = sizes_to_measure(took, 32, 0.03)

    assert took(16) == 260
    assert len(sizes) > 5
    times = filled(sizes, [round(took(size)) for size in sizes], 32)
    assert max(abs(got / took(size) - 1) for size, got in enumerate(times, 1)) < 0.05


def test_without_a_tolerance_every_size_is_measured() -> None:
    assert sizes_to_measure(lambda size: size, 5, 0.0) == (1, 2, 3, 4, 5)


def test_a_profile_says_what_was_measured_and_has_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    # On a busy machine no line may fit: then every size is measured, and there is nothing to say.
    monkeypatch.setattr("headrace.profiling.ranges.sizes_to_measure", lambda *_: (1, 4, 16))
    model = saved(chain_model(layers=4, width=64), tmp_path / "chain.onnx")
    options = ProfileOptions(
        blocks=2, max_batch=16, budget_s=0.05, grid_tolerance=0.5, profile_folder=tmp_path
    )

    profile = profile_model(model, options)

    assert profile.max_batch("cpu", profile.block_times[0].share) == 16
    [note] = [note for note in profile.provenance.notes if note.startswith("measured at batch")]
    assert note.startswith("measured at batch sizes 1, 4, 16")
    assert "p99 50.0% above them" in note


def test_a_tolerance_that_believes_anything_is_refused() -> None:
    with pytest.raises(ModelError, match="--grid-tolerance 2"):
        ProfileOptions(grid_tolerance=2.0)
