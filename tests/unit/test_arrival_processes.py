"""Bursty processes and public traces: the stated rate, the stated burstiness, one seed one run."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from headrace.domain.errors import DocumentError
from headrace.simulation.offered import traces
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.offered.processes import (
    BURST_SHARE,
    Instants,
    gamma_us,
    is_generated,
    mmpp_us,
    poisson_us,
    process_named,
)
from headrace.simulation.offered.traces import RecordedCounts, RecordedGaps, read_trace


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def dispersion(instants: Instants, bin_us: int) -> float:
    """Variance over mean of the counts per bin; 1 for Poisson."""
    counts = np.bincount(instants // bin_us)[:-1]
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_rate_and_the_coefficient_of_variation(cv: float) -> None:
    instants = gamma_us(1_000.0, 200.0, rng(), cv=cv)
    gaps = np.diff(instants)

    # Four standard errors of the count of a renewal process.
    assert len(instants) == pytest.approx(200_000, abs=4 * cv * np.sqrt(200_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert instants.min() >= 0
    assert instants.max() < 200e6


def test_a_modulated_process_keeps_its_rate_in_the_long_run() -> None:
    # 4,000 bursts: the mean of their lengths is known to 1.6 %.
    instants = mmpp_us(100.0, 2_000.0, rng(), burst=3.0, burst_s=0.1)

    assert len(instants) == pytest.approx(200_000, rel=0.05)


def test_a_modulated_process_is_as_fast_in_its_bursts_as_stated() -> None:
    # Bursts of a million seconds: the whole run lies in one phase.
    runs = [mmpp_us(100.0, 50.0, rng(seed), burst=4.0, burst_s=1e6) for seed in range(40)]
    rates = {round(len(run) / 50, -1) for run in runs}
    calm = 100 * (1 - 4 * BURST_SHARE) / (1 - BURST_SHARE)

    assert min(rates) == pytest.approx(calm, abs=10)
    assert max(rates) == pytest.approx(400, abs=20)


def test_counts_of_a_modulated_process_vary_more_than_poisson_counts() -> None:
    bursty = mmpp_us(500.0, 200.0, rng(), burst=2.0, burst_s=1.0)

    assert dispersion(poisson_us(500.0, 200.0, rng()), 100_000) == pytest.approx(1.0, abs=0.15)
    assert dispersion(bursty, 100_000) > 5


@pytest.mark.parametrize("source", ["gamma", "gamma:4", "mmpp", "mmpp:3:0.5"])
def test_one_seed_gives_one_run_which_a_longer_one_extends(source: str) -> None:
    process = process_named(source)
    short = process(200.0, 5.0, rng())

    assert short.tolist() == process(200.0, 5.0, rng()).tolist()
    assert short.tolist() != process(200.0, 5.0, rng(6)).tolist()
    assert process(200.0, 9.0, rng())[: len(short)].tolist() == short.tolist()


def test_the_first_bursty_instants_of_a_seed_are_fixed_for_good() -> None:
    # Published figures rest on these.
    assert process_named("gamma:2")(1_000.0, 1.0, rng(1))[:3].tolist() == [274, 7166, 7295]
    assert process_named("mmpp:2")(1_000.0, 1.0, rng(1))[:3].tolist() == [2264, 4664, 6018]


@pytest.mark.parametrize(
    "source", ["gamma:0", "gamma:x", "gamma:2:2", "mmpp:1", "mmpp:6", "mmpp:2:0", "poisson:1", "no"]
)
def test_a_process_that_does_not_exist_is_refused(source: str) -> None:
    with pytest.raises(DocumentError, match="arrivals"):
        process_named(source)


def test_files_are_no_processes() -> None:
    assert is_generated("gamma:2")
    assert not is_generated("gamma.csv")
    assert not is_generated("traces/poisson")


def test_an_invocation_trace_arrives_when_it_ended_less_its_duration(tmp_path: Path) -> None:
    path = tmp_path / "maf2021.csv"
    path.write_text("app,func,end_timestamp,duration\na,f,14.0,2.0\na,g,11.5,1.5\nb,f,13.0,2.0\n")

    trace = read_trace(path)

    # At 10, 11 and 12; one more gap closes the circle.
    assert isinstance(trace, RecordedGaps)
    assert trace.own_rate_rps == 1.0
    assert trace.gaps.tolist() == [1.0, 1.0, 1.0]
    assert trace(2.0, 2.0, rng()).tolist() == [0, 500_000, 1_000_000, 1_500_000]


def test_a_replay_of_gaps_has_the_rate_and_the_trace_s_own_burstiness() -> None:
    gaps = np.array([0.1, 0.1, 0.1, 3.7])
    trace = RecordedGaps(gaps=gaps, own_rate_rps=1.0)

    instants = trace(1_000.0, 60.0, rng())

    assert len(instants) == pytest.approx(60_000, abs=4)
    # Rounding to microseconds moves either end of a gap.
    assert set(np.diff(instants).tolist()) <= {99, 100, 101, 3_699, 3_700, 3_701}


def test_counts_set_the_rate_of_each_second(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt.gz"
    with gzip.open(path, "wt") as file:
        file.write("10 30 " * 50)

    trace = read_trace(path)
    assert isinstance(trace, RecordedCounts)
    instants = trace(2_000.0, 100.0, rng())
    halves = sorted(len(instants[instants // 1_000_000 % 2 == odd]) for odd in (0, 1))

    assert trace.own_rate_rps == 20.0
    assert len(instants) == pytest.approx(200_000, rel=0.01)
    assert halves[1] / halves[0] == pytest.approx(3.0, rel=0.03)


def test_lines_of_counts_continue_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("3 4 5\r\n\n 60\t70\n8\n\n")

    trace = read_trace(path)

    assert isinstance(trace, RecordedCounts)
    assert trace.counts.tolist() == [3.0, 4.0, 5.0, 60.0, 70.0, 8.0]


def test_counts_below_rps_may_stand_one_on_a_line(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("rps\r\n3\n4 5\n")

    trace = read_trace(path)

    assert isinstance(trace, RecordedCounts)
    assert trace.counts.tolist() == [3.0, 4.0, 5.0]
    path.write_text("rps\n3\n4.5\n")
    with pytest.raises(DocumentError, match=r"counts\.txt:3: expected requests per second"):
        read_trace(path)


def test_what_is_no_count_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    for content in ("3 4 5\n6 7\nrubbish\n", "3 4 5\n\n1.5 2\n", "3 4\n5 6\n-7 8\n"):
        path.write_text(content)
        with pytest.raises(DocumentError, match=r"counts\.txt:3: expected requests per second"):
            read_trace(path)


def test_counts_are_bounded_in_seconds_and_lines_in_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("1 2 3\n4 5 6\n")
    monkeypatch.setattr(traces, "MAX_ARRIVALS", 6)
    assert read_trace(path) is not None
    monkeypatch.setattr(traces, "MAX_ARRIVALS", 5)
    with pytest.raises(DocumentError, match=r"counts\.txt:2: more than 5 seconds"):
        read_trace(path)

    monkeypatch.undo()
    monkeypatch.setattr(traces, "MAX_LINE_BYTES", 5)
    with pytest.raises(DocumentError, match="a line of more than 5 characters"):
        read_trace(path)


def test_holes_of_a_recording_are_not_replayed() -> None:
    recorded = RecordedCounts(counts=np.array([0.0] * 50 + [10.0] * 4), bin_s=1.0)
    sparse = RecordedCounts(counts=np.array([0.0, 0.0, 5.0]), bin_s=1.0)

    for seed in range(20):
        seconds = np.bincount(recorded(1_000.0, 4.0, rng(seed)) // 1_000_000, minlength=4)
        assert seconds.min() > 800
        # Without an unbroken place, one that has requests at all.
        assert len(sparse(1_000.0, 2.0, rng(seed))) > 1_500


def test_minutes_of_all_functions_are_added(tmp_path: Path) -> None:
    path = tmp_path / "maf2019.csv"
    path.write_text(
        "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,60,0\no,a,g,timer,60,120\n"
    )

    trace = read_trace(path)

    assert isinstance(trace, RecordedCounts)
    assert trace.counts.tolist() == [120.0, 120.0]
    assert trace.own_rate_rps == 2.0


@pytest.mark.parametrize(
    "content",
    [
        "app,func,end_timestamp,duration\na,f,1.0\n",
        "app,func,end_timestamp,duration\na,f,1.0,1.0\n",
        "app,func,end_timestamp,duration\na,f,nan,1\na,f,2,1\n",
        "HashOwner,HashApp,HashFunction,Trigger,1\no,a,f,http,many\n",
        "0 0 0\n",
    ],
)
def test_a_malformed_trace_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)

    with pytest.raises(DocumentError, match=r"trace\.csv"):
        read_trace(path)


def test_a_list_of_arrivals_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    for content in ("1.0\n2.0\n", "at_us,model\n1,m\n", "# nothing\n", ""):
        path.write_text(content)
        assert read_trace(path) is None


def test_models_replay_a_trace_each_from_a_place_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("10 20 30 40 50")

    offered = arrivals_for(str(path), {"a": 40.0, "b": 10.0}, 4.0, seed=2)
    own = arrivals_for(str(path), {"a": 0.0, "b": 0.0}, float("inf"), seed=2)

    assert offered == arrivals_for(str(path), {"a": 40.0, "b": 10.0}, 4.0, seed=2)
    alone = arrivals_for(str(path), {"b": 10.0}, 4.0, seed=2)
    assert [arrival for arrival in offered if arrival.model == "b"] == alone
    # Five seconds at the trace's 30 per second, both models together.
    assert own[-1].at_us < 5_000_000
    assert len(own) == pytest.approx(150, abs=50)
