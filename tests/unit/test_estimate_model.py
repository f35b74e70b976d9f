"""Estimated profiles: what they promise, and what is refused."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import helper

from headrace import planning
from headrace.catalog.onnx_graph import load_graph
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.profiling.calibration import block_ratios
from headrace.profiling.devices import DEVICES
from headrace.profiling.estimate import EstimateOptions, estimate_model
from headrace.profiling.estimate_error import CLASS_ERROR, error_fraction
from headrace.profiling.kernels import KernelGraph
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.roofline import SHARE_LOSS, Work, kernel_seconds, tabulate
from headrace.verify import verify
from helpers.onnx_models import add_one_model, chain_model, residual_model, saved
from helpers.problems import make_problem
from helpers.pt2_archives import chain_archive, write_archive

HALF = Fraction(1, 2)
WHOLE = Fraction(1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(chain_model(layers=6, width=256), tmp_path / "chain.onnx")


@pytest.fixture
def measured(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return profile_model(model, ProfileOptions(blocks=3, max_batch=3, budget_s=0.05))


def work_of(path: Path) -> Work:
    graph = load_graph(path)
    shapes = {t.name: tuple(d or 1 for d in t.item_dims) for t in graph.inputs}
    return tabulate(KernelGraph(graph, shapes).kernels(graph.dynamic_nodes()), 8)


def test_it_is_marked_as_an_estimate_with_its_error_bar(model: Path) -> None:
    profile = estimate_model(model, EstimateOptions(devices=("L4", "A10"), blocks=3))

    assert profile.provenance.kind == "estimated"
    assert profile.provenance.error_fraction is not None
    assert any("A10: estimated, +-" in note for note in profile.provenance.notes)
    assert [times.device for times in profile.block_times] == ["L4", "A10"]
    assert len(profile.blocks) == 3


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_a_larger_batch_is_never_quicker(model: Path, device: str) -> None:
    (times,) = estimate_model(model, EstimateOptions(devices=(device,), max_batch=16)).block_times

    assert all(list(row) == sorted(row) for row in (*times.p50_us, *times.p99_us))


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_a_device_with_better_figures_is_never_slower(tmp_path: Path, device: str) -> None:
    work = work_of(saved(residual_model(channels=32, size=32), tmp_path / "m.onnx"))
    slow = DEVICES[device]
    fast = replace(
        slow,
        fp32_flops=2 * slow.fp32_flops,
        tf32_flops=2 * slow.tf32_flops if slow.tf32_flops else None,
        memory_bytes_per_s=2 * slow.memory_bytes_per_s,
        cache_bytes=2 * slow.cache_bytes,
    )

    assert np.all(kernel_seconds(work, fast) <= kernel_seconds(work, slow))


def test_a_share_takes_longer_by_its_size_and_a_stated_loss(tmp_path: Path) -> None:
    path = saved(chain_model(layers=6, width=1024), tmp_path / "wide.onnx")

    whole, half = estimate_model(
        path, EstimateOptions(devices=("L4",), shares=(WHOLE, HALF), blocks=1)
    ).block_times

    assert half.p50_us[0][7] == pytest.approx(2 * (1 + SHARE_LOSS) * whole.p50_us[0][7], abs=2)


def test_the_bar_is_wider_for_what_is_less_known(model: Path, tmp_path: Path) -> None:
    products = work_of(model)
    convolutions = work_of(saved(residual_model(channels=64, size=64), tmp_path / "conv.onnx"))

    known = error_fraction(convolutions, DEVICES["L4"])

    assert known < error_fraction(convolutions, DEVICES["A100"])
    assert known < error_fraction(convolutions, DEVICES["L4"], whole=False)
    assert known < error_fraction(convolutions, DEVICES["cpu"])
    assert known < error_fraction(products, DEVICES["L4"])


def test_a_model_that_only_passes_tensors_on_is_not_said_to_be_known_exactly(
    tmp_path: Path,
) -> None:
    model = add_one_model()
    model.graph.node[0].CopyFrom(helper.make_node("Identity", ["x"], ["y"]))
    path = saved(model, tmp_path / "m.onnx")

    told = estimate_model(path, EstimateOptions(devices=("L4", "T4"), blocks=1)).provenance

    bar = CLASS_ERROR["memory"]
    assert told.error_fraction == bar
    assert told.notes[-1] == f"1 of T4: estimated, +-{bar:.0%} of a whole model's latency"


def test_it_extends_a_measured_profile_by_devices_with_the_same_blocks(
    model: Path, measured: Profile
) -> None:
    mixed = estimate_model(model, EstimateOptions(devices=("L4", "T4"), like=measured))

    assert mixed.blocks == measured.blocks
    assert mixed.block_times[0] == measured.block_times[0]
    assert mixed.stage_times == measured.stage_times
    assert [times.device for times in mixed.block_times] == ["cpu", "L4", "T4"]
    assert mixed.provenance.kind == "estimated"
    assert mixed.provenance.notes[0].startswith("1 of cpu: measured ")


def test_a_cluster_of_measured_cores_and_estimated_gpus_is_planned_and_verified(
    model: Path, measured: Profile
) -> None:
    mixed = estimate_model(model, EstimateOptions(devices=("T4",), like=measured, max_batch=3))
    slowest_us = sum(row[0] for row in mixed.block_times[0].p99_us)
    problem = make_problem(
        profiles=[mixed],
        nodes={"own": {"cpu": 2}, "rented": {"T4": 1}},
        slo_us=10 * slowest_us + 5_000,
    )

    result = planning.solve(problem)

    assert result.plan is not None
    assert {slot.device for slot in result.plan.slots} == {"cpu", "T4"}
    assert verify(result.plan, {mixed.model: mixed}) == []


def test_calibration_on_a_core_moves_time_between_blocks_but_adds_none(
    model: Path, measured: Profile
) -> None:
    (times,) = measured.block_times
    cpu = np.array(
        estimate_model(model, EstimateOptions(devices=("cpu",), calibrate=measured, max_batch=3))
        .block_times[0]
        .p50_us
    )

    true = np.array(times.p50_us)
    proportions = true[:, 0] / true[:, 0].sum()
    assert cpu[:, 0] / cpu[:, 0].sum() == pytest.approx(proportions, abs=0.25)
    ratios = block_ratios(times, np.ones((3, 5)))
    assert np.mean(ratios, axis=0) == pytest.approx(np.ones(5))
    assert np.array_equal(ratios[:, 2], ratios[:, 4])


def test_calibration_on_a_gpu_carries_over_as_it_is(measured: Profile) -> None:
    gpu = msgspec.structs.replace(measured.block_times[0], device="T4")
    estimated_s = np.array(gpu.p50_us) / 2e6

    assert block_ratios(gpu, estimated_s) == pytest.approx(np.full(estimated_s.shape, 2.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("L40",)}, "--device L40: has no public figures here; known are L4"),
        ({"devices": ()}, "--device: name at least one"),
        ({"devices": ("L4",), "blocks": 0}, "--blocks 0: must lie between"),
        ({"devices": ("L4",), "max_batch": 5000}, "--max-batch 5000: must lie between"),
        ({"devices": ("L4",), "shares": (Fraction(3, 2),)}, "--shares: each must lie above 0"),
        ({"devices": ("L4",), "shares": (Fraction(1, 99),)}, "at most 64 parts"),
        ({"devices": ("cpu",), "shares": (HALF,)}, "a core is not shared"),
        ({"devices": ("L4",), "name": "a b"}, "--name 'a b'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        EstimateOptions(**options)  # type: ignore[arg-type]


def test_a_profile_of_another_model_is_refused(measured: Profile, tmp_path: Path) -> None:
    other = saved(chain_model(layers=3), tmp_path / "other.onnx")

    with pytest.raises(ModelError, match=r"is not the model of the given profile of 'chain'"):
        estimate_model(other, EstimateOptions(devices=("L4",), like=measured))


def test_a_pytorch_export_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    write_archive(path, chain_archive())
    with pytest.raises(ModelError, match=r"PyTorch export.*estimate the same model from torch"):
        estimate_model(path, EstimateOptions(devices=("L4",)))


def test_a_device_that_the_profile_already_has_is_refused(model: Path, measured: Profile) -> None:
    with pytest.raises(ModelError, match="already has 1 of cpu"):
        estimate_model(model, EstimateOptions(devices=("cpu",), like=measured))


def test_estimates_do_not_calibrate_estimates(model: Path) -> None:
    first = estimate_model(model, EstimateOptions(devices=("L4",), blocks=2))

    with pytest.raises(ModelError, match="holds estimates"):
        estimate_model(model, EstimateOptions(devices=("T4",), calibrate=first))


def test_two_profiles_with_different_cuts_are_refused(model: Path, measured: Profile) -> None:
    other = estimate_model(model, EstimateOptions(devices=("L4",), blocks=2))

    with pytest.raises(ModelError, match="cut in different places"):
        estimate_model(model, EstimateOptions(devices=("T4",), like=other, calibrate=measured))
