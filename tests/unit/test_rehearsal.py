"""A rehearsal's log against the plan: levels, contradictions, and who uses them."""

import dataclasses
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.catalog.event_log import EventLogWriter, read_header
from headrace.commands.kept_rehearsal import kept_rehearsal, rehearsal_paths
from headrace.commands.rehearse import rehearse_before_ready
from headrace.commands.rehearsing import during, run_rehearsal
from headrace.dispatch.policies import policy_for
from headrace.domain.errors import DocumentError
from headrace.domain.events import AnyEvent, Arrived, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.problem import Items, PlanOptions, ProfileRef
from headrace.domain.profile import Profile
from headrace.load.child_server import ChildServer, ServerFailedError
from headrace.load.result import LoadResult
from headrace.metrics import Report
from headrace.reporting.rehearsal import Rehearsal, contradictions, rehearsed_stages
from headrace.reporting.rehearsed_problem import rehearsed_profiles
from headrace.simulation.offered.arrivals import uniform
from headrace.simulation.session import simulate
from helpers.commands import Run, runner
from helpers.locks import others_wait
from helpers.one_answer import run_of_one
from helpers.problems import make_plan, make_problem, make_profile

GOOD = {"m": 1.0}
Log = tuple[EventLogHeader, Sequence[AnyEvent]]


def slower(profile: Profile, factor: int) -> Profile:
    def scaled(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(value * factor for value in row) for row in rows)

    times = tuple(
        replace(t, p50_us=scaled(t.p50_us), p99_us=scaled(t.p99_us)) for t in profile.block_times
    )
    return replace(profile, block_times=times)


@pytest.fixture(name="planned", scope="module")
def _planned() -> tuple[Plan, Mapping[str, Profile]]:
    problem = make_problem([make_profile("m")], nodes={"n": {"a": 2}}, slo_us=100_000)
    return make_plan(problem), problem.profiles


def log_of(plan: Plan, profiles: Mapping[str, Profile], factor: int) -> Log:
    """A log of the plan on a machine that is slower by `factor`."""
    real = {name: slower(profile, factor) for name, profile in profiles.items()}
    patient = [dataclasses.replace(a, timeout_us=10**9) for a in uniform("m", 30.0, 2.0)]
    return simulate(plan, real, patient, policy=policy_for(plan), jitter=False)


def test_what_is_found_is_of_the_runs_at_the_full_rate() -> None:
    """The last events of a run come before the next begins; what is before all runs is of none."""
    events = [Arrived(at_us, request, 0, 0) for request, at_us in enumerate((5, 10, 19, 20, 31))]

    assert during(events, [10, 20, 30], [0, 2]) == [events[1], events[2], events[4]]


def test_the_times_of_the_log_are_what_the_profile_says_where_nothing_interferes(
    planned: tuple[Plan, Mapping[str, Profile]],
) -> None:
    plan, profiles = planned
    stages = rehearsed_stages(plan, profiles, *log_of(plan, profiles, 1))

    assert {stage.level_p50 for stage in stages} == {1.0}
    assert contradictions(plan, stages, {"m": 30.0}, GOOD) == ()


def test_a_plan_that_the_machine_does_not_keep_is_contradicted_with_needed_and_available(
    planned: tuple[Plan, Mapping[str, Profile]],
) -> None:
    plan, profiles = planned
    stages = rehearsed_stages(plan, profiles, *log_of(plan, profiles, 3))
    planned_rps = plan.deployments[0].throughput_rps
    found = contradictions(plan, stages, {"m": 0.8 * planned_rps}, GOOD)

    assert {stage.level_p50 for stage in stages} == {3.0}
    text = "\n".join(found)
    assert "a batch alone misses the SLO" in text
    assert "m cannot carry its rate" in text
    assert f"requests/s with the times of the rehearsal, planned {planned_rps:.4g}" in text


def test_what_is_slower_but_good_enough_is_no_contradiction(
    planned: tuple[Plan, Mapping[str, Profile]],
) -> None:
    plan, profiles = planned
    roomy = replace(plan, deployments=tuple(replace(d, slo_us=10**7) for d in plan.deployments))
    stages = rehearsed_stages(plan, profiles, *log_of(plan, profiles, 3))

    assert contradictions(roomy, stages, {"m": 1.0}, GOOD) == ()


def test_too_few_batches_say_nothing(planned: tuple[Plan, Mapping[str, Profile]]) -> None:
    plan, profiles = planned
    header, _ = log_of(plan, profiles, 1)

    stages = rehearsed_stages(plan, profiles, header, [])

    assert {(stage.batches, stage.level_p50, stage.p99_us) for stage in stages} == {(0, None, None)}
    assert contradictions(plan, stages, {"m": 1.0}, GOOD) == ()


def test_answers_that_come_late_though_the_stages_are_quick_contradict_the_plan_too(
    planned: tuple[Plan, Mapping[str, Profile]],
) -> None:
    plan, profiles = planned
    stages = rehearsed_stages(plan, profiles, *log_of(plan, profiles, 1))

    (found,) = contradictions(plan, stages, {"m": 30.0}, {"m": 0.4})

    assert "needs  95 % at 30 requests/s\n  has    40 %" in found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


@pytest.fixture
def rehearsed(planned: tuple[Plan, Mapping[str, Profile]], tmp_path: Path) -> Path:
    """A plan file with what a rehearsal on a machine three times as slow leaves beside it."""
    plan, profiles = planned
    write_document(profiles["m"], tmp_path / "m.json")
    ref = ProfileRef(model="m", path="m.json", sha256=sha256_file(tmp_path / "m.json"))
    plan = replace(plan, profiles=(ref,))
    path = tmp_path / "plan.json"
    write_document(plan, path)
    header, events = log_of(plan, profiles, 3)
    stages = rehearsed_stages(plan, profiles, header, events)
    findings, log = rehearsal_paths(path)
    with EventLogWriter(log, replace(header, clock="live")) as writer:
        for event in events:
            writer.append(event)
    found = Rehearsal(
        plan_sha256=sha256_file(path),
        offered_rps={"m": 30.0},
        attainment={"m": 0.0},
        stages=stages,
        contradictions=contradictions(plan, stages, {"m": 30.0}, GOOD),
    )
    write_document(found, findings)
    return path


def p50_us(out: str) -> int:
    latency = msgspec.json.decode(out, type=Report).total.latency
    assert latency is not None
    return latency.p50_us


def test_simulate_takes_the_times_of_the_rehearsal_and_says_so(run: Run, rehearsed: Path) -> None:
    light = ("--rps", "2", "--duration-s", "20", "--arrivals", "uniform", "--json")

    code, out, err = run("simulate", str(rehearsed), *light)
    _, as_profiled, _ = run("simulate", str(rehearsed), *light, "--profile-times")

    assert code == 0
    assert "those of the rehearsal in" in err
    assert p50_us(out) > 2 * p50_us(as_profiled)


@pytest.mark.parametrize(
    "content",
    [b'{"plan_sha256": "\xe9"}', b'{"plan_sha256": "0', b'{"stages": ' + b"[" * 100_000],
    ids=["no UTF-8", "cut short", "nested too deeply"],
)
def test_a_damaged_rehearsal_is_ignored_and_said_to_be(
    run: Run, rehearsed: Path, content: bytes
) -> None:
    findings, _ = rehearsal_paths(rehearsed)
    findings.write_bytes(content)

    code, _, err = run("simulate", str(rehearsed), "--rps", "2", "--duration-s", "1")

    assert code == 0
    assert err.count(f"the rehearsal in {findings} is ignored: ") == 1


@pytest.mark.parametrize("line", [0, 2])
def test_a_damaged_log_of_a_rehearsal_is_ignored_and_said_to_be(
    run: Run, rehearsed: Path, line: int
) -> None:
    _, events = rehearsal_paths(rehearsed)
    lines = events.read_bytes().split(b"\n")
    events.write_bytes(b"\n".join([*lines[:line], b"{]", *lines[line + 1 :], b""]))

    code, _, err = run("simulate", str(rehearsed), "--rps", "2", "--duration-s", "1")

    assert code == 0
    assert err.count(f"the rehearsal in {events} is ignored: ") == 1
    assert "execution times" not in err
    assert "execution times" not in err


def test_the_rehearsal_of_another_plan_is_left_alone(run: Run, rehearsed: Path) -> None:
    assert kept_rehearsal(rehearsed) is not None

    plan = json.loads(rehearsed.read_bytes())
    plan["runtime_s"] += 1.0
    rehearsed.write_text(json.dumps(plan))

    assert kept_rehearsal(rehearsed) is None
    _, _, err = run("simulate", str(rehearsed), "--rps", "2", "--duration-s", "1")
    assert "execution times" not in err


OVER_A_REHEARSAL = {
    "simulate": ["simulate", "plan.json", "--profile-times", "--events", "plan.rehearsal.events"],
    "simulate, another plan": [
        *("simulate", "other.json", "--migrate", "plan.json"),
        *("--events", "./plan.rehearsal.events"),
    ],
    "serve": ["serve", "gone.json", "--events", "gone.rehearsal.events"],
    "rehearse": ["rehearse", "gone.json", "--out", "gone.rehearsal.json"],
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("command", OVER_A_REHEARSAL)
def test_nothing_else_is_written_where_a_rehearsal_is_kept_or_will_be(
    run: Run, rehearsed: Path, monkeypatch: pytest.MonkeyPatch, command: str, kept: bool
) -> None:
    monkeypatch.chdir(rehearsed.parent)
    Path("other.json").write_bytes(rehearsed.read_bytes())
    if not kept:
        for path in rehearsal_paths(rehearsed):
            path.unlink()
    before = {path: path.read_bytes() for path in rehearsed.parent.iterdir()}

    code, _, err = run(*OVER_A_REHEARSAL[command])

    assert (code, "is where the rehearsal of " in err) == (2, True), err
    assert {path: path.read_bytes() for path in rehearsed.parent.iterdir()} == before


LAST_SENT_US = 1_500_000


@pytest.fixture
def server_writes(
    monkeypatch: pytest.MonkeyPatch, rehearsed: Path
) -> Callable[[Sequence[AnyEvent]], Path]:
    """A server that has answered one request in each run, and leaves a log of these events, cut
    off in their last line; none: it is empty."""

    def one_request(*given: object, **options: object) -> Mapping[str, LoadResult]:
        return run_of_one(LAST_SENT_US, LAST_SENT_US, LAST_SENT_US + 10_000, slo_us=100_000)

    def prepare(events: Sequence[AnyEvent]) -> Path:
        header = read_header(rehearsal_paths(rehearsed)[1])

        @contextmanager
        def serving(plan: Path, *arguments: str) -> Iterator[ChildServer]:
            yield ChildServer("http://127.0.0.1:1", os.getpid())
            log = Path(arguments[arguments.index("--events") + 1])
            lines = msgspec.json.Encoder().encode_lines([header, *events])
            log.write_bytes(lines[:-1] if events else b"")

        monkeypatch.setattr("headrace.load.child_server.child_server", serving)
        return rehearsed

    monkeypatch.setattr("headrace.load.generator.run_load_of_models", one_request)
    return prepare


def arrivals_until(last_us: int) -> list[AnyEvent]:
    return [
        Arrived(at_us, number, 0, at_us + 100_000)
        for number, at_us in enumerate(range(0, last_us + 1, 100_000))
    ]


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([], "cannot be read"),
        # The last is the line that is cut off.
        (arrivals_until(LAST_SENT_US), "ends 0.1 s before the last request that was answered"),
    ],
    ids=["no header", "no end"],
)
def test_a_rehearsal_whose_log_the_server_gave_up_is_no_proof_and_is_not_kept(
    server_writes: Callable[[Sequence[AnyEvent]], Path],
    run: Run,
    events: Sequence[AnyEvent],
    complaint: str,
) -> None:
    """The disk was full for a while: "no contradictions" then meant that nothing was known."""
    plan = server_writes(events)
    before = {path: path.read_bytes() for path in plan.parent.iterdir()}

    code, _, err = run("rehearse", str(plan))

    assert (code, complaint in err, "is the disk full?" in err) == (2, True, True), err
    assert str(plan.parent) in err
    assert ".plan.rehearsal-" not in err, "a folder that is gone"
    assert {path: path.read_bytes() for path in plan.parent.iterdir()} == before


def test_findings_are_never_beside_the_log_of_another_rehearsal(
    server_writes: Callable[[Sequence[AnyEvent]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = server_writes(arrivals_until(LAST_SENT_US + 100_000))
    findings, log = rehearsal_paths(plan)
    placed: list[tuple[Path, bool, bool]] = []
    place = os.replace

    def noting(source: Path, target: Path) -> None:
        if target in (findings, log):
            placed.append((target, findings.exists(), others_wait(plan.parent)))
        place(source, target)

    monkeypatch.setattr(os, "replace", noting)

    found = run_rehearsal(plan, [])

    assert placed == [(log, False, True), (findings, False, True)]
    assert kept_rehearsal(plan) == found


def test_a_rehearsal_that_cannot_be_kept_whole_leaves_the_one_before(
    server_writes: Callable[[Sequence[AnyEvent]], Path],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = server_writes(arrivals_until(LAST_SENT_US + 100_000))
    before = {path: path.read_bytes() for path in plan.parent.iterdir()}

    def full(record: msgspec.Struct, path: Path) -> None:
        raise DocumentError(f"{path}: cannot be written") from OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("headrace.catalog.documents.write_document", full)

    code, _, err = run("rehearse", str(plan))

    assert (code, "the rehearsal of plan.json cannot be kept: [Errno 28] full" in err) == (2, True)
    assert ".plan.rehearsal-" not in err, "a folder that is gone"
    assert {path: path.read_bytes() for path in plan.parent.iterdir()} == before


def test_simulated_events_are_no_rehearsal(run: Run, rehearsed: Path) -> None:
    _, log = rehearsal_paths(rehearsed)
    written = log.read_bytes()
    log.write_bytes(written.replace(b'"clock":"live"', b'"clock":"virtual"'))
    assert log.read_bytes() != written

    code, _, err = run("simulate", str(rehearsed), "--rps", "2", "--duration-s", "1")

    assert code == 0
    assert kept_rehearsal(rehearsed) is None
    assert "execution times" not in err


def test_a_server_repeats_what_an_earlier_rehearsal_contradicted_and_does_not_rehearse_again(
    rehearsed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Path] = []

    def not_started(path: Path, arguments: Sequence[str]) -> Rehearsal:
        ran.append(path)
        raise ServerFailedError("no server today")

    monkeypatch.setattr("headrace.commands.rehearse.run_rehearsal", not_started)

    levels = rehearse_before_ready(rehearsed, None, "auto", [])
    assert set(levels.values()) == {3.0}
    assert ran == []
    assert "the rehearsal contradicts the plan: m/p0" in capsys.readouterr().err

    rehearsal_paths(rehearsed)[0].unlink()
    assert rehearse_before_ready(rehearsed, None, "auto", []) == {}
    captured = capsys.readouterr()
    assert ran == [rehearsed]
    assert "not rehearsed: no server today" in captured.err
    # Scripts wait there for the READY line.
    assert captured.out == ""


def test_where_no_rehearsal_can_be_kept_it_is_said_before_a_server_is_started(
    run: Run, rehearsed: Path
) -> None:
    """The plan's own name is all that a name may be long."""
    plan = rehearsed.with_name(f"{'p' * 240}.json")
    rehearsed.rename(plan)

    code, _, err = run("rehearse", str(plan))

    assert code == 2
    assert "cannot be written: File name too long" in err
    assert "rehearsing" not in err
    assert "needs  a rehearsal is kept beside its plan" in err


def test_rehearsals_at_once_write_logs_of_their_own(
    run: Run, rehearsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their processes are numbered: in containers all of them are the first."""
    before, written = set(rehearsed.parent.iterdir()), set()

    def refuse(plan: Path, *arguments: str) -> None:
        written.add(arguments[arguments.index("--events") + 1])
        raise ServerFailedError("not now")

    monkeypatch.setattr("headrace.load.child_server.child_server", refuse)
    for _ in range(2):
        assert run("rehearse", str(rehearsed))[0] != 0

    assert len(written) == 2
    assert set(rehearsed.parent.iterdir()) == before


@cache
def depths() -> tuple[Plan, Mapping[str, Profile]]:
    problem = make_problem(
        [make_profile("m", blocks=6, devices={"a": 1.0})],
        nodes={"n": {"a": 4}},
        slo_us=1_000_000,
        options=PlanOptions(planner="malleable", margin=0.0, max_depth=3),
    )
    items = Items(mean=8, distribution="log-normal", sigma=0.5)
    demands = tuple(replace(demand, items=items) for demand in problem.demands)
    return make_plan(replace(problem, demands=demands)), problem.profiles


@pytest.mark.parametrize(("factor", "found"), [(1, 0), (100, 1)])
def test_depths_are_rehearsed_stage_by_stage(factor: int, found: int) -> None:
    plan, profiles = depths()
    header, events = log_of(plan, profiles, factor)

    stages = rehearsed_stages(plan, profiles, header, events)

    assert {stage.pipeline for stage in stages} == {"depth1", "depth2", "depth3"}
    known = [stage for stage in stages if stage.level_p50 is not None]
    assert known
    assert all(stage.level_p50 == pytest.approx(factor, rel=0.01) for stage in known)
    said = contradictions(plan, stages, {"m": 30.0}, GOOD)
    assert len(said) == found
    assert all(text.startswith("m: a request of 8 items alone misses the SLO") for text in said)


def test_profiles_of_depths_have_the_levels_of_their_rehearsal() -> None:
    plan, profiles = depths()
    stages = rehearsed_stages(plan, profiles, *log_of(plan, profiles, 3))
    rehearsal = Rehearsal(
        plan_sha256="", offered_rps={}, attainment={}, stages=stages, contradictions=()
    )

    again = rehearsed_profiles(plan, profiles, rehearsal)["m"]

    before, after = profiles["m"].block_times[0], again.block_times[0]
    assert after.p50_us[0][0] == pytest.approx(3 * before.p50_us[0][0], rel=0.05)
