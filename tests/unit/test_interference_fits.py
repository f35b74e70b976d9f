"""Fits of interference: known coefficients come back, nothing leaks, too little is refused."""

from fractions import Fraction
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.domain.errors import DocumentError, ModelError, ProfileError
from headrace.domain.interference import Interference
from headrace.domain.profile import Provenance
from headrace.interference import DeviceUse, slowdown_of
from headrace.profiling.interference import (
    FORMS,
    PAPER_ERRORS,
    WITHOUT_SENSITIVITY,
    Fit,
    Side,
    SideBySide,
    choose_form,
    document_of,
    errors_of,
    fit,
    hold_out,
    middle_of_most,
    split_pairs,
)
from headrace.profiling.pairs_file import read_pairs, write_pairs

HALF = Fraction(1, 2)
MADE = Provenance(kind="synthetic", date="2026-01-01T00:00:00Z")
MODELS = "abcde"


def sides(seed: int, models: str = MODELS, batch_sizes: tuple[int, ...] = (1, 4)) -> list[Side]:
    rng = np.random.default_rng(seed)
    return [
        Side(model=model, batch_size=size, share=HALF, l2=float(l2), dram=float(dram))
        for model, size in product(models, batch_sizes)
        for l2, dram in [rng.uniform(0, 1, 2)]
    ]


def beside_each_other(
    runs: list[Side], coefficients: tuple[float, ...], noise: float = 0.0, seed: int = 0
) -> list[SideBySide]:
    """All ordered pairs, slowed by the paper's line with these coefficients."""
    rng = np.random.default_rng(seed)
    known = Fit(form="linear", terms=FORMS["linear"][0], coefficients=coefficients, beside={})
    pairs = [SideBySide(own=a, other=b, slowdown=1.0) for a, b in product(runs, repeat=2)]
    factors = known.predict(pairs) * (1 + noise * rng.standard_normal(len(pairs)))
    return [
        SideBySide(own=each.own, other=each.other, slowdown=float(factor))
        for each, factor in zip(pairs, factors, strict=True)
    ]


COEFFICIENTS = st.tuples(st.floats(1, 1.5), *[st.floats(0, 1) for _ in range(4)])


@settings(max_examples=25, deadline=None)
@given(
    coefficients=COEFFICIENTS, seed=st.integers(0, 1000), form=st.sampled_from(["linear", "robust"])
)
def test_known_coefficients_come_back(
    coefficients: tuple[float, ...], seed: int, form: str
) -> None:
    found = fit(beside_each_other(sides(seed), coefficients), form)

    assert found.coefficients == pytest.approx(coefficients, abs=1e-6)


def test_least_absolute_errors_are_not_bent_by_a_batch_that_ran_another_way() -> None:
    coefficients = (1.1, 0.1, 0.3, 0.2, 0.4)
    measured = beside_each_other(sides(1), coefficients)
    odd = [
        SideBySide(own=each.own, other=each.other, slowdown=2.5 * each.slowdown)
        if index % 10 == 0
        else each
        for index, each in enumerate(measured)
    ]

    assert fit(odd, "robust").coefficients == pytest.approx(coefficients, abs=0.02)
    assert fit(odd, "linear").coefficients != pytest.approx(coefficients, abs=0.02)


def test_a_models_own_sensitivity_comes_back_though_no_feature_shows_it() -> None:
    runs, rng = sides(2), np.random.default_rng(3)
    own = {(side.model, side.share, side.batch_size): rng.uniform(1, 3) for side in runs}
    measured = [
        SideBySide(
            own=a,
            other=b,
            slowdown=own[a.model, a.share, a.batch_size] + 0.2 * b.l2 + 0.1 * b.dram,
        )
        for a, b in product(runs, repeat=2)
    ]

    found = fit(measured, "sensitivity")

    assert found.coefficients == pytest.approx((1.0, 0.2, 0.1), abs=1e-3)
    assert found.beside == pytest.approx(own, abs=1e-3)
    assert choose_form(measured, tuple(FORMS), seed=0) == "sensitivity"


def test_of_batches_that_take_one_of_two_times_neither_is_forgotten() -> None:
    values = np.array([1.5] * 12 + [1.8] * 9)
    middle = middle_of_most(values)
    # Of the median one of the two is wrong by a sixth or a fifth.
    assert np.abs(middle / values - 1).max() == pytest.approx(0.3 / 3.3)


@given(st.lists(st.floats(0.9, 1.1), min_size=8, max_size=40), st.floats(2, 50))
def test_a_few_disturbed_runs_do_not_move_the_middle_out_of_the_rest(
    calm: list[float], far: float
) -> None:
    disturbed = [far] * (len(calm) // 5)
    assert 0.9 <= middle_of_most(np.array([*disturbed, *calm])) <= 1.1


@given(seed=st.integers(0, 10_000), models=st.integers(2, 6), parts=st.integers(2, 9))
@settings(max_examples=40, deadline=None)
def test_a_pair_of_models_is_never_on_both_sides_and_each_is_held_out_once(
    seed: int, models: int, parts: int
) -> None:
    measured = beside_each_other(sides(seed, "abcdef"[:models]), (1.0, 0.0, 0.1, 0.0, 0.1))
    held_out: list[frozenset[str]] = []

    for fitted, held in split_pairs(measured, seed, parts):
        assert {each.pair for each in fitted}.isdisjoint(each.pair for each in held)
        assert len(fitted) + len(held) == len(measured)
        held_out += {each.pair for each in held}

    assert sorted(held_out, key=sorted) == sorted({each.pair for each in measured}, key=sorted)


def test_the_error_on_held_out_pairs_is_that_of_the_noise() -> None:
    measured = beside_each_other(
        sides(4, batch_sizes=(1, 2, 4, 8)), (1.2, 0.1, 0.2, 0.1, 0.3), 0.02
    )

    verdict = hold_out(measured, ["linear"], seed=0)

    assert len(verdict.errors) == len(measured)
    # 1.64 standard deviations of the noise, and a little for coefficients that are not exact.
    assert 0.025 < verdict.at(0.9) < 0.045
    assert all(verdict.within(error) > part for error, part in PAPER_ERRORS)


def test_the_simplest_form_stays_where_no_other_is_clearly_better() -> None:
    measured = beside_each_other(sides(5), (1.2, 0.1, 0.2, 0.1, 0.3), 0.02)

    assert choose_form(measured, tuple(FORMS), seed=0) == "linear"


def test_where_nobody_slows_anybody_no_feature_is_believed() -> None:
    measured = beside_each_other(sides(5), (1.0, 0.0, 0.0, 0.0, 0.0), 0.05)

    found = document_of("cpu", measured, MADE, forms=tuple(FORMS))[1]

    assert found.form == "constant"
    assert found.coefficients == pytest.approx((1.0,), abs=0.03)


def test_a_document_predicts_what_its_fit_does() -> None:
    measured = beside_each_other(sides(6), (1.05, 0.1, 0.2, 0.1, 0.3), 0.01)

    document, found = document_of("cpu", measured, MADE, seed=1)

    predicted = [
        slowdown_of(
            document,
            [DeviceUse(each.own.l2, each.own.dram, 0.5)],
            [[DeviceUse(each.other.l2, each.other.dram, 0.5)]],
        )
        for each in measured
    ]
    assert predicted == pytest.approx(list(found.predict(measured)))
    assert document.hold_out is not None
    assert document.hold_out.split_by == "model-pairs"
    assert document.hold_out.error_p90 == hold_out(measured, WITHOUT_SENSITIVITY, seed=1).at(0.9)


def test_what_is_to_be_covered_raises_the_prediction() -> None:
    measured = beside_each_other(sides(7), (1.2, 0.1, 0.2, 0.1, 0.3), 0.05)

    middle, found = document_of("cpu", measured, MADE)
    raised, _ = document_of("cpu", measured, MADE, cover=0.95)

    ratio = raised.coefficients[0] / middle.coefficients[0]
    assert raised.coefficients == pytest.approx([ratio * each for each in middle.coefficients])
    slower = [
        each.slowdown > ratio * predicted
        for each, predicted in zip(measured, found.predict(measured), strict=True)
    ]
    assert ratio > 1.04
    assert 0.02 < sum(slower) / len(slower) < 0.08


@pytest.mark.parametrize("form", WITHOUT_SENSITIVITY)
def test_what_is_covered_is_so_beside_neighbours_that_would_make_a_model_faster(form: str) -> None:
    # Beside quiet ones the line is well below 1, and what is measured is noise about 1.
    measured = beside_each_other(sides(7), (0.7, 0.0, 0.0, 0.0, 0.6), 0.05)

    raised, found = document_of("cpu", measured, MADE, forms=[form], cover=0.95)

    ratio = raised.coefficients[0] / found.coefficients[0]
    covered = []
    for fitted, held in split_pairs(measured, seed=0):
        sums = ratio * fit(fitted, form).sums(held)
        covered += [
            each.slowdown <= max(1.0, predicted) * (1 + 1e-9)
            for each, predicted in zip(held, sums, strict=True)
        ]
    assert 0.95 <= sum(covered) / len(covered) < 0.97


def test_what_no_factor_covers_is_refused() -> None:
    # Of two models, what is held out is far from what is fitted to.
    measured = beside_each_other(sides(1, "ab"), (1.2, 0.1, 0.2, 0.1, 0.3), 0.5)

    with pytest.raises(ModelError, match=r"no factor of form 'products' covers 95\.0% of held-out"):
        document_of("cpu", measured, MADE, forms=["products"], cover=0.95)


def test_two_models_without_themselves_are_too_few_to_test_on() -> None:
    runs = sides(8, "ab")
    measured = [
        each
        for each in beside_each_other(runs, (1.0, 0.0, 0.1, 0.0, 0.1))
        if each.own.model != each.other.model
    ]

    with pytest.raises(ModelError, match=r"1 pairs of models .* at least 3 are"):
        document_of("cpu", measured, MADE)


def test_two_models_beside_each_other_and_themselves_are_enough() -> None:
    measured = beside_each_other(sides(8, "ab"), (1.1, 0.1, 0.2, 0.1, 0.3))

    document, found = document_of("cpu", measured, MADE)

    assert found.form == "linear"
    assert document.hold_out is not None
    assert document.hold_out.pairs == len(measured) == 16


def test_fewer_measurements_than_coefficients_are_refused() -> None:
    measured = beside_each_other(sides(9, "a", (1,)), (1.0, 0.0, 0.1, 0.0, 0.1))

    with pytest.raises(ModelError, match="1 measurements for 5 coefficients"):
        fit(measured, "linear")


def test_a_model_that_was_never_beside_another_has_no_sensitivity() -> None:
    measured = beside_each_other(sides(10, "abc"), (1.0, 0.0, 0.1, 0.0, 0.1))
    stranger = beside_each_other(sides(11, "z"), (1.0, 0.0, 0.1, 0.0, 0.1))

    with pytest.raises(ModelError, match=r"'z' at batch size 1 .* never measured beside"):
        errors_of(fit(measured, "sensitivity"), stranger)


def test_a_document_that_needs_a_sensitivity_says_so_where_none_was_measured() -> None:
    document = Interference(
        device="cpu", features=("beside_own",), coefficients=(1.0,), provenance=MADE
    )
    measured = DeviceUse(0.1, 0.1, 0.5, beside=1.25)

    assert slowdown_of(document, [measured], [[measured]]) == 1.25
    with pytest.raises(ProfileError, match="--update-profiles"):
        slowdown_of(document, [DeviceUse(0.1, 0.1, 0.5)], [[measured]])


def test_pairs_are_read_as_they_were_written(tmp_path: Path) -> None:
    measured = beside_each_other(sides(12, "ab"), (1.0, 0.0, 0.1, 0.0, 0.1))
    path = tmp_path / "pairs.json"

    write_pairs(measured, path)

    assert read_pairs(path) == measured


def test_a_file_that_is_no_file_of_pairs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_bytes(msgspec.json.encode([{"own": 1}]))

    with pytest.raises(DocumentError, match="no file of measured pairs"):
        read_pairs(path)
