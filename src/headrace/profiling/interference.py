"""Fits what models that run side by side cost each other (gpu-lets, section 4.4), and tests it.

One measurement is of an ordered pair: a batch of one model on a part of a device beside batches of
another on another part, as a multiple of what it takes alone. With u the utilisations of both,

    slowdown = max(1, sum over terms of coefficient x term(u))

Forms, of few coefficients each, that compete on the same held-out pairs of models:

constant     1: everybody is slowed alike, or nobody
linear       1, l2_own, l2_other, dram_own, dram_other: the paper's, by least squares as there
robust       the same by least absolute errors relative to the slowdown: what is not explained by
             the terms (a batch that ran with another algorithm) does not bend the line
products     and l2_own*l2_other, dram_own*dram_other: who takes nothing is slowed by nobody
sensitivity  beside_own, l2_other, dram_other: the part of the model itself is not computed from
             what it takes but measured over its neighbours (Bubble-Up has such curves); for models
             that were measured beside at least one other

The form is chosen by pairs that are held out in turn from those that it is fitted to; errors are
stated of pairs that had no part in either. A pair of models is held out whole: both directions, all
batch sizes, all shares. Rows of one pair are alike, so a split by rows would flatter.

Least absolute errors by reweighting (Schlossmacher, 1973): 30 solutions of least squares, each row
weighted by 1 / sqrt of its last error.

What a model's own part is, of several measurements: the middle of the shortest interval that holds
MOST of them (the shorth; Andrews et al., 1972, take half). A batch may take one of two times, by
what no feature tells, as on GPUs that switch algorithms or clocks: the median is then one of the
two, and wrong of the other by all that lies between them; the middle is wrong of both by half.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite, prod

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ModelError
from headrace.domain.interference import PAPER_TERMS, HoldOut, Interference, factors
from headrace.domain.profile import Provenance

Floats = NDArray[np.float64]

PAPER_ERRORS = ((0.1026, 0.90), (0.1398, 0.95))
"""Error, and the part of held-out measurements that the paper's model predicts within it."""

PARTS = 5
"""Of the pairs; each part is held out in turn."""
LEAST_PAIRS = 3
"""Of models: one to hold out, and two to fit to."""

CLEARLY = 0.2

MOST = 0.8
"""Of a model's measurements: those further out are taken for disturbed."""

_REWEIGHTINGS = 30
_ALTERNATIONS = 6
_LEAST_ERROR = 0.01
"""Below it a row's weight grows no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One model as it runs on its part of a device."""

    model: str
    batch_size: int
    share: Fraction
    l2: float
    """Alone on its part, of the whole device's, in [0, 1]."""
    dram: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """One measurement."""

    own: Side
    other: Side
    slowdown: float
    """Time of a batch of `own` beside `other` over its time alone."""

    @property
    def pair(self) -> frozenset[str]:
        return frozenset((self.own.model, self.other.model))


Measurements = Sequence[SideBySide]
Place = tuple[str, Fraction, int]
"""Model, share, batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A form with its coefficients."""

    form: str
    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    beside: Mapping[Place, float]
    """Of form sensitivity: what was measured of each model; else empty."""

    def predict(self, measured: Measurements) -> Floats:
        """Slowdowns, one per measurement (of which only the two sides are looked at).

        Raises:
            ModelError: a model was never measured beside another, and the form needs it.
        """
        slowdowns: Floats = np.maximum(1.0, self.sums(measured))
        return slowdowns

    def sums(self, measured: Measurements) -> Floats:
        """Of the terms, as `predict`, before the least of 1."""
        found: Floats = _table(measured, self.terms, self.beside) @ np.array(self.coefficients)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a fit is worth on pairs that it was not fitted to."""

    form: str
    errors: Floats
    """|predicted / measured - 1|, one per held-out measurement."""

    def within(self, error: float) -> float:
        """Part of the measurements that are predicted within this error."""
        return float(np.mean(self.errors <= error))

    def at(self, part: float) -> float:
        """The error within which this part of the measurements is predicted."""
        return float(np.quantile(self.errors, part))


def fit(measured: Measurements, form: str) -> Fit:
    """Fit one of FORMS.

    Raises:
        ModelError: there are fewer measurements than coefficients.
    """
    terms, solve = FORMS[form]
    if len(measured) < len(terms):
        raise ModelError(
            f"interference: {len(measured)} measurements for {len(terms)} coefficients of form"
            f" {form!r}; measure more batch sizes or pairs"
        )
    beside, coefficients = solve(measured, terms)
    return Fit(form=form, terms=terms, coefficients=tuple(map(float, coefficients)), beside=beside)


def choose_form(measured: Measurements, forms: Sequence[str], seed: int) -> str:
    """The first form whose error at 90 % of pairs held out in turn is not clearly above the least:
    by CLEARLY. Few pairs say little, and the simplest form is the last to fail."""
    if len({each.pair for each in measured}) < LEAST_PAIRS:
        return forms[0]
    rows = min(len(fitted) for fitted, _ in split_pairs(measured, seed))
    testable = [form for form in forms if len(FORMS[form][0]) <= rows] or [forms[0]]
    errors = [hold_out(measured, [form], seed).at(0.9) for form in testable]
    near = [(1 - CLEARLY) * error <= min(errors) for error in errors]
    return testable[near.index(True)]


def hold_out(measured: Measurements, forms: Sequence[str], seed: int) -> Verdict:
    """Errors on every pair of models, each predicted by a fit that knows nothing of it.

    Of several forms each fit uses the one that its own pairs choose.

    Raises:
        ModelError: too few pairs of models.
    """
    errors = []
    for fitted, held in split_pairs(measured, seed):
        chosen = forms[0] if len(forms) == 1 else choose_form(fitted, forms, seed)
        errors.append(errors_of(fit(fitted, chosen), _answerable(fitted, held, chosen)))
    return Verdict(form=forms[0] if len(forms) == 1 else "chosen", errors=np.concatenate(errors))


def errors_of(found: Fit, measured: Measurements) -> Floats:
    slowdowns = np.array([each.slowdown for each in measured])
    errors: Floats = np.abs(found.predict(measured) / slowdowns - 1)
    return errors


def split_pairs(
    measured: Measurements, seed: int, parts: int = PARTS
) -> Iterator[tuple[list[SideBySide], list[SideBySide]]]:
    """(to fit, held out), each pair of models held out once, in a random order.

    Raises:
        ModelError: fewer than LEAST_PAIRS pairs of models.
    """
    pairs = sorted({each.pair for each in measured}, key=sorted)
    if len(pairs) < LEAST_PAIRS:
        raise ModelError(
            f"interference: {len(pairs)} pairs of models were measured, at least {LEAST_PAIRS} are"
            " needed to fit to some and test on others\n"
            "  try       one more profile: two models make three pairs, each beside itself too"
        )
    order = np.random.default_rng(seed).permutation(len(pairs))
    for part in range(min(parts, len(pairs))):
        held = {pairs[i] for i in order[part::parts]}
        yield (
            [each for each in measured if each.pair not in held],
            [each for each in measured if each.pair in held],
        )


def document_of(
    device: str,
    measured: Measurements,
    provenance: Provenance,
    *,
    forms: Sequence[str] | None = None,
    cover: float | None = None,
    seed: int = 0,
) -> tuple[Interference, Fit]:
    """Fit the form that pairs held out choose to all pairs, and state its errors on held-out ones.

    Args:
        forms: that compete; None: those that need nothing but utilisations.
        cover: raise all coefficients, so that this part of held-out measurements is at most as slow
            as predicted; for promises. None: the middle. The errors stated are of the middle.
        seed: of the order in which pairs are held out.

    Raises:
        ModelError: too few pairs of models.
    """
    forms = tuple(forms or WITHOUT_SENSITIVITY)
    verdict = hold_out(measured, forms, seed)
    found = fit(measured, choose_form(measured, forms, seed) if len(forms) > 1 else forms[0])
    raised = 1.0 if cover is None else _raise_that_covers(measured, found.form, cover, seed)
    document = Interference(
        device=device,
        features=found.terms,
        coefficients=tuple(raised * coefficient for coefficient in found.coefficients),
        hold_out=HoldOut(
            pairs=len(verdict.errors),
            error_p90=verdict.at(0.9),
            error_p95=verdict.at(0.95),
            error_p99=verdict.at(0.99),
            split_by="model-pairs",
        ),
        provenance=provenance,
    )
    return document, found


def _raise_that_covers(measured: Measurements, form: str, part: float, seed: int) -> float:
    """By what all coefficients are to be multiplied, so that this part of held-out measurements is
    at most as slow as predicted; at least 1.

    Raises:
        ModelError: no factor does, since too many have a sum of terms that is not above 0.
    """
    needed = []
    for fitted, held in split_pairs(measured, seed):
        if known := _answerable(fitted, held, form):
            slowdowns, sums = np.array([k.slowdown for k in known]), fit(fitted, form).sums(known)
            # Nothing is predicted to be faster than alone, whatever the factor is.
            never = np.where(slowdowns > 1, np.inf, 1.0)
            needed.append(np.divide(slowdowns, sums, out=never, where=(sums > 0) & (slowdowns > 1)))
    found = float(np.quantile(np.concatenate(needed), part, method="higher"))
    if not isfinite(found):
        raise ModelError(
            f"interference: no factor of form {form!r} covers {part:.1%} of held-out runs: its sum"
            " of terms is not above 0 for more than the others\n"
            "  try       a smaller --cover, or measure more pairs"
        )
    return max(1.0, found)


def _answerable(fitted: Measurements, held: Measurements, form: str) -> list[SideBySide]:
    """Held-out measurements that the form can say something of."""
    if form != "sensitivity":
        return list(held)
    known = {_place(each.own) for each in fitted}
    return [each for each in held if _place(each.own) in known]


def _place(side: Side) -> Place:
    return side.model, side.share, side.batch_size


def _table(measured: Measurements, terms: Sequence[str], beside: Mapping[Place, float]) -> Floats:
    """Shape (measurements, terms)."""
    needs_beside = any("beside_own" in factors(term) for term in terms)
    rows = []
    for each in measured:
        own, other = each.own, each.other
        values = {
            "l2_own": own.l2,
            "l2_other": other.l2,
            "dram_own": own.dram,
            "dram_other": other.dram,
            "share_own": float(own.share),
            "share_other": float(other.share),
        }
        if needs_beside:
            if _place(own) not in beside:
                raise ModelError(
                    f"interference: {own.model!r} at batch size {own.batch_size} on {own.share} was"
                    " never measured beside another model"
                )
            values["beside_own"] = beside[_place(own)]
        rows.append([prod(values[name] for name in factors(term)) for term in terms])
    return np.array(rows, np.float64).reshape(len(rows), len(terms))


Solved = tuple[Mapping[Place, float], Floats]


def _least_squares(measured: Measurements, terms: Sequence[str]) -> Solved:
    slowdowns = np.array([each.slowdown for each in measured])
    return {}, _solution(_table(measured, terms, {}), slowdowns, np.ones(len(measured)))


def _least_absolute(measured: Measurements, terms: Sequence[str]) -> Solved:
    slowdowns = np.array([each.slowdown for each in measured])
    return {}, _reweighted(_table(measured, terms, {}), slowdowns, 1 / slowdowns)


def _with_sensitivity(measured: Measurements, terms: Sequence[str]) -> Solved:
    """The slopes of the neighbours' terms within places; then alternately every place's median of
    what they leave, and the slopes of what the medians leave; of the last, every place's middle."""
    neighbours = [term for term in terms if term != "beside_own"]
    table = _table(measured, neighbours, {})
    slowdowns = np.array([each.slowdown for each in measured])
    rows: dict[Place, list[int]] = defaultdict(list)
    for index, each in enumerate(measured):
        rows[_place(each.own)].append(index)
    within, level = table.copy(), np.zeros(len(measured))
    for own in rows.values():
        within[own] -= table[own].mean(axis=0)
        level[own] = slowdowns[own].mean()
    slopes = _reweighted(within, slowdowns - level, 1 / slowdowns)
    for _ in range(_ALTERNATIONS):
        for own in rows.values():
            level[own] = np.median(slowdowns[own] - table[own] @ slopes)
        slopes = _reweighted(table, slowdowns - level, 1 / slowdowns)
    beside = {
        place: max(_LEAST_ERROR, middle_of_most(slowdowns[own] - table[own] @ slopes))
        for place, own in rows.items()
    }
    by_term = dict(zip(neighbours, slopes, strict=True)) | {"beside_own": 1.0}
    return beside, np.array([by_term[term] for term in terms])


def middle_of_most(values: Floats) -> float:
    """Of the shortest interval, relative to where it lies, that holds MOST of the values: where
    the errors relative to its ends are equal."""
    ordered = np.sort(values)
    held = max(1, ceil(MOST * len(ordered)))
    low, high = ordered[: len(ordered) - held + 1], ordered[held - 1 :]
    at = int(np.argmin((high - low) / np.maximum(high + low, _LEAST_ERROR)))
    whole = float(low[at] + high[at])
    return float(2 * low[at] * high[at]) / whole if whole > 0 else 0.0


def _reweighted(table: Floats, wanted: Floats, weights: Floats) -> Floats:
    """Coefficients of least sum of weight x |error|."""
    found = _solution(table, wanted, weights)
    for _ in range(_REWEIGHTINGS):
        errors = np.maximum(np.abs(table @ found - wanted) * weights, _LEAST_ERROR)
        found = _solution(table, wanted, weights / np.sqrt(errors))
    return found


def _solution(table: Floats, wanted: Floats, weights: Floats) -> Floats:
    """Coefficients of least sum of (weight x error) squared."""
    found = np.linalg.lstsq(table * weights[:, None], wanted * weights, rcond=None)[0]
    return np.asarray(found, np.float64)


Solver = Callable[[Measurements, Sequence[str]], Solved]

FORMS: Mapping[str, tuple[tuple[str, ...], Solver]] = {
    "constant": (("1",), _least_absolute),
    "linear": (PAPER_TERMS, _least_squares),
    "robust": (PAPER_TERMS, _least_absolute),
    "products": ((*PAPER_TERMS, "l2_own*l2_other", "dram_own*dram_other"), _least_absolute),
    "sensitivity": (("beside_own", "l2_other", "dram_other"), _with_sensitivity),
}
"""Name -> its terms, and how they are fitted; the simplest first."""

WITHOUT_SENSITIVITY = ("constant", "linear", "robust", "products")
"""Forms that say something of models that were never measured beside another."""
