"""What models that run side by side on one device cost each other. `headrace.interference/1`.

A linear model (gpu-lets, section 4.4): the slowdown of one model beside another is

    max(1, sum over terms of coefficient x term)

where a term is "1" or a product of features, such as "l2_other" or "l2_own*dram_other". `own` is
the model whose slowdown it is, `other` its neighbour; both as each uses the device when it is alone
on its part: the part of the second-level cache's bandwidth and of the memory's that it takes, in
[0, 1] (`Utilisation` of its profile), the part of the device that it owns (`share`), and, where it
was measured beside others, how much slower it is beside one that uses neither (`beside`).
"""

from typing import Literal

from headrace.domain.base import LEGAL_NAME, Record, is_name
from headrace.domain.errors import DocumentError
from headrace.domain.profile import Provenance

FEATURES = (
    "l2_own",
    "l2_other",
    "dram_own",
    "dram_other",
    "share_own",
    "share_other",
    "beside_own",
)
"""What a term may be made of."""

COEFFICIENT_MAX = 1e6
"""Features are parts of a whole: more is no slowdown, and its sums would be no numbers."""

PAPER_TERMS = ("1", "l2_own", "l2_other", "dram_own", "dram_other")
"""Those of the paper."""


class HoldOut(Record, frozen=True, kw_only=True):
    """Errors on pairs that the coefficients were not fitted to: |predicted / measured - 1|."""

    pairs: int
    """Measurements that were held out."""
    error_p90: float
    """90 % of them are predicted within this error; 0.1 means 10 %."""
    error_p95: float
    error_p99: float
    split_by: Literal["rows", "model-pairs"]
    """What was held out: single measurements, or all those of a pair of models."""


class Interference(Record, frozen=True, kw_only=True):
    """`headrace.interference/1`: of one device type."""

    schema: Literal["headrace.interference/1"] = "headrace.interference/1"
    device: str
    """Name of the device type."""
    features: tuple[str, ...] = PAPER_TERMS
    """Terms: "1", or names of FEATURES joined by "*"."""
    coefficients: tuple[float, ...]
    """One per term."""
    hold_out: HoldOut | None = None
    provenance: Provenance

    def __post_init__(self) -> None:
        where = f"interference on {self.device!r}"
        if not is_name(self.device):
            raise DocumentError(f"{where}: not a legal name of a device type: {LEGAL_NAME}")
        if len(self.features) != len(self.coefficients) or not self.features:
            raise DocumentError(
                f"{where}: {len(self.coefficients)} coefficients for {len(self.features)} terms"
            )
        if not all(abs(coefficient) <= COEFFICIENT_MAX for coefficient in self.coefficients):
            raise DocumentError(
                f"{where}: every coefficient must be a finite number, of at most"
                f" {COEFFICIENT_MAX:g} in size"
            )
        for term in self.features:
            unknown = [name for name in factors(term) if name not in FEATURES]
            if unknown:
                raise DocumentError(
                    f"{where}: no feature {unknown[0]!r} in term {term!r}; there are"
                    f" {', '.join(FEATURES)}, and the term 1"
                )


def factors(term: str) -> tuple[str, ...]:
    """Features whose product a term is; none of the constant.

    >>> factors("l2_own*dram_other"), factors("1")
    (('l2_own', 'dram_other'), ())
    """
    return () if term == "1" else tuple(term.split("*"))
