"""What a model moves, counted from its graph, as parts of what a core can move."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.base import Bandwidths
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.utilisation import (
    CORE,
    Traffic,
    batch_traffic,
    with_utilisation,
)
from helpers.onnx_models import chain_model, saved

WIDTH, LAYERS = 256, 3
MATRIX_BYTES = 4 * WIDTH * WIDTH


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    model = saved(chain_model(layers=LAYERS, width=WIDTH), tmp_path / "chain.onnx")
    options = ProfileOptions(
        blocks=1, max_batch=2, stages="none", budget_s=0.02, profile_folder=tmp_path
    )
    return profile_model(model, options)


def counted(profile: Profile, folder: Path, cache_bytes: int = CORE.cache_bytes) -> list[Traffic]:
    return batch_traffic(profile, folder, "cpu", 2, cache_bytes)


def test_every_kernel_reads_its_weights_and_input_and_writes_its_output(
    profile: Profile, tmp_path: Path
) -> None:
    one, two = counted(profile, tmp_path)

    # A matrix product and its activation are two kernels here, so a layer's result is written,
    # read, and written again; each layer but the first reads it once more.
    row = 4 * WIDTH
    per_layer = 4 * row
    assert one.moved_bytes == LAYERS * (MATRIX_BYTES + per_layer)
    assert two.moved_bytes == one.moved_bytes + LAYERS * per_layer
    # Three matrices of 256 kB stay in the cache, and rows do.
    assert one.beyond_bytes == two.beyond_bytes == 0


def test_weights_beyond_the_cache_are_read_from_memory_by_every_batch(
    profile: Profile, tmp_path: Path
) -> None:
    one, two = counted(profile, tmp_path, cache_bytes=2 * MATRIX_BYTES)

    assert one.beyond_bytes == two.beyond_bytes == LAYERS * MATRIX_BYTES


def test_it_is_bytes_over_time_over_what_a_core_moves(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.profiling.utilisation.CORE", replace(CORE, cache_bytes=0))
    slow = msgspec.structs.replace(
        profile,
        block_times=(
            msgspec.structs.replace(
                profile.block_times[0], p50_us=((1_000, 2_000),), p99_us=((1_000, 2_000),)
            ),
        ),
    )
    one, two = counted(slow, tmp_path, cache_bytes=0)

    [used] = with_utilisation(slow, tmp_path, "cpu").utilisation

    assert (used.device, used.share, used.batch_sizes) == ("cpu", Fraction(1), (1, 2))
    assert used.l2 == pytest.approx(
        [
            one.moved_bytes / 1_000 / CORE.cache_bytes_per_us,
            two.moved_bytes / 2_000 / CORE.cache_bytes_per_us,
        ],
        abs=1e-6,
    )
    assert used.dram == pytest.approx(
        [
            one.moved_bytes / 1_000 / CORE.memory_bytes_per_us,
            two.moved_bytes / 2_000 / CORE.memory_bytes_per_us,
        ],
        abs=1e-6,
    )
    assert with_utilisation(
        msgspec.structs.replace(slow, utilisation=(used,)), tmp_path, "cpu"
    ).utilisation == (used,)


def test_another_model_than_the_profiled_one_is_refused(profile: Profile, tmp_path: Path) -> None:
    saved(chain_model(layers=LAYERS, width=WIDTH, seed=9), tmp_path / "chain.onnx")

    with pytest.raises(ModelError, match="is not the model that was profiled"):
        with_utilisation(profile, tmp_path, "cpu")


def test_a_profile_without_a_model_cannot_be_counted(profile: Profile, tmp_path: Path) -> None:
    unknown = msgspec.structs.replace(profile, model_path=None, model_sha256=None)

    with pytest.raises(ModelError, match="names no model file"):
        with_utilisation(unknown, tmp_path, "cpu")


class WatchedDevice:
    """As `measurement`: a device that measures what it moves, and shows what operators read and
    write: weights of 1 MB and 1 kB an item, then 3 kB an item."""

    def __init__(self, *, batch_of_one_needs_less: bool = False) -> None:
        self.sizes: list[int] = []
        self._less = batch_of_one_needs_less

    def __call__(self, device: str, model: str) -> SimpleNamespace:
        bandwidths = Bandwidths(cache_bytes=10_000, cache_bytes_per_us=1e4, memory_bytes_per_us=2e3)
        return SimpleNamespace(bandwidths=lambda: bandwidths, operator_bytes=self._watched)

    def _watched(self, content: bytes, weights: object, batches: list[Any]) -> list[list[int]]:
        assert content, "the whole model as a stage"
        self.sizes = [len(next(iter(feeds.values()))) for feeds in batches]
        found = [[1_000_000 + 1_000 * size, 3_000 * size] for size in self.sizes]
        if self._less and self.sizes[0] == 1:
            found[0] = [sum(found[0])]
        return found


def test_operators_that_the_executor_shows_count_in_place_of_the_graphs(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedDevice()
    monkeypatch.setattr("headrace.profiling.utilisation.measurement", watched)

    one, two = batch_traffic(profile, tmp_path, "cpu", 2, 5_000)
    assert watched.sizes == [1, 2]
    assert [each.moved_bytes for each in (one, two)] == [1_004_000, 1_008_000]
    # Of 786 kB of weights, and of what flows where it exceeds 5 kB: 6 kB behind a batch of two.
    assert [each.beyond_bytes for each in (one, two)] == [1_000_000, 1_006_000]

    four = batch_traffic(profile, tmp_path, "cpu", 4, 5_000)
    assert watched.sizes == [2, 3]
    assert [each.moved_bytes for each in four] == [1_000_000 + 4_000 * size for size in range(1, 5)]

    [alone] = batch_traffic(profile, tmp_path, "cpu", 1, 5_000)
    assert watched.sizes == [1]
    weights = profile.weights_bytes(0, 1)
    assert (alone.moved_bytes, alone.beyond_bytes) == (1_004_000, 1_004_000)
    assert alone.moved_bytes - weights > 5_000


def test_a_model_that_cannot_be_watched_is_counted_by_its_graph(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> list[list[int]]:
        raise ModelError("an operator that nobody can watch")

    by_graph = counted(profile, tmp_path)
    how = SimpleNamespace(operator_bytes=refused)
    monkeypatch.setattr("headrace.profiling.utilisation.measurement", lambda device, model: how)

    assert counted(profile, tmp_path) == by_graph


def test_a_device_that_measures_what_it_moves_is_what_utilisation_is_a_part_of(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedDevice(batch_of_one_needs_less=True)
    monkeypatch.setattr("headrace.profiling.utilisation.measurement", watched)
    times = msgspec.structs.replace(
        profile.block_times[0], p50_us=((1_000, 2_000),), p99_us=((1_000, 2_000),)
    )
    slow = msgspec.structs.replace(profile, block_times=(times,))

    [used] = with_utilisation(slow, tmp_path, "cpu").utilisation

    assert used.l2 == pytest.approx([1_004_000 / 1_000 / 1e4, 1_008_000 / 2_000 / 1e4])
    assert used.dram == pytest.approx([1_000_000 / 1_000 / 2e3, 1_000_000 / 2_000 / 2e3])
