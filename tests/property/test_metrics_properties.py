"""What holds for the metrics of any set of requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.request import Outcome
from headrace.metrics import distribution, summarise


@st.composite
def requests(draw: st.DrawFn) -> Outcome:
    arrived = draw(st.integers(0, 10_000_000))
    latency = draw(st.none() | st.integers(0, 5_000_000))
    reason = "" if latency is not None else draw(st.sampled_from(["deadline", "failed"]))
    return Outcome(
        arrived_at_us=arrived,
        deadline_at_us=arrived + draw(st.integers(1, 3_000_000)),
        ended_at_us=None if latency is None else arrived + latency,
        reason=reason,
    )


@given(st.lists(requests()))
def test_every_request_is_counted_exactly_once(all_requests: list[Outcome]) -> None:
    summary = summarise(all_requests)

    assert summary.arrived == summary.answered + sum(summary.dropped.values())
    assert summary.answered == summary.in_time + summary.late
    assert 0 <= summary.in_time <= summary.answered <= summary.arrived == len(all_requests)


@given(st.lists(requests(), min_size=2))
def test_goodput_never_exceeds_throughput_nor_throughput_the_offer(
    all_requests: list[Outcome],
) -> None:
    summary = summarise(all_requests)

    if summary.offered_rps is not None:
        assert summary.throughput_rps is not None
        assert summary.goodput_rps is not None
        assert 0 <= summary.goodput_rps <= summary.throughput_rps <= summary.offered_rps


@given(st.lists(requests(), min_size=1))
def test_the_order_of_requests_does_not_matter(all_requests: list[Outcome]) -> None:
    assert summarise(all_requests) == summarise(all_requests[::-1])


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_percentiles_are_numpys_inverted_cdf(values: list[int]) -> None:
    found = distribution(values)

    assert found is not None
    expected = np.percentile(values, [50, 90, 99], method="inverted_cdf").tolist()
    assert [found.p50_us, found.p90_us, found.p99_us] == expected
    assert min(values) <= found.p50_us <= found.p90_us <= found.p99_us <= found.p999_us
    assert found.p999_us <= found.max_us == max(values)
    assert found.mean_us == pytest.approx(sum(values) / len(values))
