"""The verdict of the benchmark that holds planned throughput against measured."""

import pytest
from benchmarks.live.planned_throughput import verdict


@pytest.mark.parametrize(
    ("apart", "ends"),
    [([-0.3, 0.0, 0.3], "miss"), ([0.26, -0.06, 0.2], "miss"), ([-0.11, 0.09, 0.04], "pass")],
)
def test_blocks_above_and_below_do_not_make_up_for_each_other(
    apart: list[float], ends: str
) -> None:
    assert verdict(apart).endswith(f": {ends}")
