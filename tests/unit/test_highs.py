"""What the solver says goes nowhere."""

import pytest

from headrace.highs import SilentHighs


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    highs = SilentHighs()
    highs.addVariable(lb=0.0, ub=1.0, obj=-1.0)
    highs.run()

    assert list(highs.getSolution().col_value) == [1.0]
    assert capfd.readouterr() == ("", "")
