"""Parts of a core in profiles."""

from fractions import Fraction

import pytest

from headrace.domain.errors import ModelError
from headrace.profiling.shares import parse_shares, with_shares
from helpers.problems import profiled_us
from helpers.served import profile_by_hand


def test_a_part_of_a_core_takes_as_much_longer_as_it_is_smaller() -> None:
    profile = profile_by_hand(["a", "y"], 2, 1_000, "cpu")
    shared = with_shares(profile, "cpu", [Fraction(1), Fraction(1, 4)])

    assert profiled_us(shared, "cpu", Fraction(1, 4), 0, 2, 2)[1] == 8_000
    assert profiled_us(shared, "cpu", Fraction(1), 0, 2, 2)[1] == 2_000
    assert len(shared.block_times) == 2
    assert "1/4 of a cpu" in shared.provenance.notes[-1]
    assert with_shares(shared, "cpu", [Fraction(1, 4)]) == shared


@pytest.mark.parametrize("text", ["0", "2", "-1/2", "1/0", "half", "1/65"])
def test_what_is_no_part_of_a_core_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="parts of a core"):
        parse_shares([text])
