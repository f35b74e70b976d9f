"""Arrivals: reproducible, statistically right, and strict about files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.catalog.event_log import EventLogWriter
from headrace.domain.errors import DocumentError
from headrace.domain.events import Arrived
from headrace.simulation.offered.arrivals import (
    MAX_FILE_BYTES,
    Arrival,
    arrivals_for,
    from_file,
    merge,
    poisson,
    rescaled,
    uniform,
)
from headrace.simulation.offered.processes import poisson_us, uniform_us
from helpers.topologies import make_route, make_stage, make_topology

WHOLE = make_topology([make_route(make_stage([0], [10_000]))])


def test_one_seed_gives_one_schedule() -> None:
    first = arrivals_for("poisson", {"a": 50.0, "b": 20.0}, 5.0, seed=3)

    assert first == arrivals_for("poisson", {"a": 50.0, "b": 20.0}, 5.0, seed=3)
    assert first != arrivals_for("poisson", {"a": 50.0, "b": 20.0}, 5.0, seed=4)


def test_a_models_instants_do_not_depend_on_the_other_models() -> None:
    both = arrivals_for("poisson", {"a": 50.0, "b": 20.0}, 5.0, seed=3)
    alone = arrivals_for("poisson", {"b": 20.0}, 5.0, seed=3)

    assert [arrival for arrival in both if arrival.model == "b"] == alone


def test_the_first_instants_of_a_seed_are_fixed_for_good() -> None:
    # Stored runs and published figures rest on these; a change must be a decision.
    instants = poisson_us(100.0, 1.0, np.random.default_rng(1))

    assert instants[:3].tolist() == [10_730, 13_815, 67_569]


def test_a_longer_run_extends_a_shorter_one() -> None:
    short = poisson_us(100.0, 2.0, np.random.default_rng(1))
    long = poisson_us(100.0, 9.0, np.random.default_rng(1))

    assert long[: len(short)].tolist() == short.tolist()
    assert long[len(short)] >= 2_000_000


def test_poisson_counts_have_the_mean_and_variance_of_a_poisson_process() -> None:
    rate, duration = 200.0, 500.0
    instants = poisson_us(rate, duration, np.random.default_rng(7))
    per_second = np.bincount(instants // 1_000_000, minlength=int(duration))
    gaps = np.diff(instants) / 1e6

    # Four standard errors of each estimator.
    assert per_second.mean() == pytest.approx(rate, abs=4 * np.sqrt(rate / duration))
    assert per_second.var() == pytest.approx(rate, rel=4 * np.sqrt(2 / duration))
    assert gaps.std() * rate == pytest.approx(1.0, rel=4 * np.sqrt(2 / len(gaps)))
    assert instants.min() >= 0
    assert instants.max() < duration * 1e6


def test_uniform_arrivals_are_evenly_spaced_and_end_before_the_duration() -> None:
    assert uniform_us(3.0, 1.0).tolist() == [0, 333_333, 666_667]
    assert len(uniform_us(0.1, 30.0)) == 3
    assert uniform_us(1e6, 1e-6).tolist() == [0]


@pytest.mark.parametrize(
    ("rate", "duration"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0), (1e9, 1e9)]
)
def test_a_run_without_end_or_beginning_is_refused(rate: float, duration: float) -> None:
    with pytest.raises(DocumentError):
        uniform("m", rate, duration)
    with pytest.raises(DocumentError):
        poisson("m", rate, duration, np.random.default_rng(0))


def test_merged_streams_are_in_order_and_ties_go_to_the_first() -> None:
    a, b = uniform("a", 2.0, 1.0), uniform("b", 4.0, 1.0)

    merged = merge([a, b])

    assert [arrival.at_us for arrival in merged] == [0, 0, 250_000, 500_000, 500_000, 750_000]
    assert [arrival.model for arrival in merged] == ["a", "b", "b", "a", "b", "b"]


def test_rescaling_keeps_the_pattern_and_sets_the_rate() -> None:
    given = [Arrival(at_us=at, model="m", priority=2) for at in (0, 1_000_000, 4_000_000)]

    assert [arrival.at_us for arrival in rescaled(given, 1.0)] == [0, 500_000, 2_000_000]
    assert {arrival.priority for arrival in rescaled(given, 1.0)} == {2}
    with pytest.raises(DocumentError, match="two different instants"):
        rescaled(given[:1], 1.0)


def test_a_plain_file_holds_seconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# recorded on a Monday\n0.25\n\n1e0\n1.0\n")

    assert from_file(path, ["m"]) == [
        Arrival(at_us=250_000, model="m"),
        Arrival(at_us=1_000_000, model="m"),
        Arrival(at_us=1_000_000, model="m"),
    ]


def test_a_file_with_a_header_may_name_model_timeout_and_priority(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_us,model,timeout_ms,priority\n5,a,1.5,\n7,b,,2\n")

    assert from_file(path, ["a", "b"]) == [
        Arrival(at_us=5, model="a", timeout_us=1500),
        Arrival(at_us=7, model="b", priority=2),
    ]


def test_a_files_rate_is_its_own_unless_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_s\n0\n1\n2\n")

    own = arrivals_for(str(path), {"m": 0.0}, 10.0, seed=1)
    faster = arrivals_for(str(path), {"m": 10.0}, 0.15, seed=1)

    assert [arrival.at_us for arrival in own] == [0, 1_000_000, 2_000_000]
    assert [arrival.at_us for arrival in faster] == [0, 100_000]


@pytest.mark.parametrize(
    ("content", "line", "complaint"),
    [
        ("1.0\nsoon\n", 2, "expected a number"),
        ("1.0\n0.5\n", 2, "sort the file by time$"),
        ("at_s\n55\n52\n", 3, "sort the file by time$"),
        ("55\n52\n", 2, "sort the file by time; above requests per second, add a line `rps`$"),
        ("1.0\nnan\n", 2, "expected a number"),
        ("1.0\ninf\n", 2, "expected a number"),
        ("-1\n", 1, "expected a number"),
        ("1.0\n1.0,2\n", 2, "expected 1 columns, got 2"),
        ("when\n1\n", 1, "expected a header"),
        ("at_us,at_s\n1,1\n", 1, "expected a header"),
        ("at_us,at_us\n1,1\n", 1, "expected a header"),
        ("model\na\n", 1, "expected a header"),
        ("at_us\n1.5\n", 2, "expected a whole number"),
        ("at_us,model\n1,c\n", 2, "not one of a, b"),
        ("at_us,model,timeout_ms\n1,a,0\n", 2, "must be positive"),
        ("at_us,model,priority\n1,a,-1\n", 2, "expected a whole number from 0"),
        ('at_us,model\n1,"a\n', 2, "not comma-separated"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, content: str, line: int, complaint: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)

    with pytest.raises(DocumentError, match=complaint) as refusal:
        from_file(path, ["a", "b"] if "model" in content else ["m"])

    assert f"{path}:{line}:" in str(refusal.value)


@pytest.mark.parametrize("models", [1, 10_000])
def test_an_event_log_is_named_as_such_and_how_its_arrivals_become_a_list(
    tmp_path: Path, models: int
) -> None:
    """Also one whose first line is longer than any of a list."""
    path = tmp_path / "run.events"
    topology = replace(WHOLE, models=WHOLE.models * models)
    with EventLogWriter(path, topology.event_log_header("live", "reservation")) as log:
        log.append(Arrived(at_us=7, request=0, model=0, deadline_at_us=9))

    with pytest.raises(DocumentError, match="is an event log") as refusal:
        arrivals_for(str(path), {"m0": 0.0}, 1.0, seed=0)

    assert "--times" in str(refusal.value)
    assert "`at_us,model`" in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "line", "advice"),
    [
        ("1\n", 1, "a header `at_s,model`, and names; or all for one of them, with --model a"),
        ("at_us\n1\n", 2, "a header `at_s,model`"),
        ("at_us,model\n1,a\n2,\n", 3, "a name in every line"),
    ],
)
def test_a_file_without_models_cannot_feed_several(
    tmp_path: Path, content: str, line: int, advice: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)

    with pytest.raises(DocumentError, match="not of which model, and there are a, b") as refusal:
        from_file(path, ["a", "b"])

    assert f"{path}:{line}:" in str(refusal.value)
    assert advice in str(refusal.value)


@pytest.mark.parametrize("content", ["0.1\n0.2\n0.3\n", "at_s\n0.1\n", "rps\n5\n7\n"])
def test_a_byte_order_mark_is_no_part_of_what_is_read(tmp_path: Path, content: str) -> None:
    plain, marked = tmp_path / "plain.txt", tmp_path / "marked.txt"
    plain.write_text(content, encoding="utf-8")
    marked.write_text(content, encoding="utf-8-sig")

    read = [arrivals_for(str(path), {"m": 0.0}, 3.0, seed=1) for path in (plain, marked)]

    assert read[0] == read[1]


def test_a_missing_or_binary_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="poisson"):
        from_file(tmp_path / "bursty", ["m"])
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="not a text file"):
        from_file(tmp_path / "noise", ["m"])


def test_a_file_that_has_no_lines_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES)

    with pytest.raises(DocumentError, match="a line of more than"):
        from_file(path, ["m"])
    with pytest.raises(DocumentError, match="is a device"):
        from_file(Path("/dev/zero"), ["m"])
