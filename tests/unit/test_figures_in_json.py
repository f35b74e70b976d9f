"""What `--json` says besides what is kept: figures that the tables show."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.commands.output import print_json
from headrace.load.search import RateSearch
from headrace.metrics import Distribution, Report, summarise
from headrace.reporting.profile_table import profile_summary
from headrace.reporting.rehearsal import Rehearsal, RehearsedStage, rehearsal_summary
from headrace.reporting.summary import lateness_line
from helpers.problems import make_profile
from helpers.sized import sized_profile


def printed(capsys: pytest.CaptureFixture[str], value: object) -> Any:
    print_json(value)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("measured_stages", [True, False])
def test_a_profile_says_what_the_whole_model_takes_on_each_device_type(
    measured_stages: bool,
) -> None:
    profile = make_profile("m", devices={"a": 1.0, "b": 2.0}, measured_stages=measured_stages)

    whole = profile_summary(profile, Path("m.profile.json"))["whole_by_device"]

    assert isinstance(whole, dict)
    assert list(whole) == ["a", "b"]
    for device, found in whole.items():
        [times] = [each for each in profile.block_times if each.device == device]
        stage = profile.measured_stage(device, times.share, 0, len(profile.blocks))
        sums = [sum(column) for column in zip(*times.p99_us, strict=True)]
        assert found["p99_us"] == (sums if stage is None else list(stage.p99_us))


def test_a_profile_says_what_the_whole_model_takes_at_each_size() -> None:
    profile = sized_profile(sizes=(16, 256))

    summary = profile_summary(profile, Path("m.profile.json"))

    whole: Any = summary["whole_by_size"]
    assert list(whole) == ["16", "256"]
    assert whole["256"]["p50_us"] == [
        sum(column) for column in zip(*profile.block_times[0].p50_us, strict=True)
    ]
    assert whole["16"]["p50_us"][0] < whole["256"]["p50_us"][0]
    assert profile_summary(make_profile("m"), Path("m"))["whole_by_size"] == {}


def test_a_rehearsal_says_what_a_full_batch_took(capsys: pytest.CaptureFixture[str]) -> None:
    def stage(level: float | None) -> RehearsedStage:
        return RehearsedStage(
            model="m",
            pipeline="p0",
            stage=0,
            batch_size=4,
            batches=50,
            predicted_p50_us=1_000,
            predicted_p99_us=1_500,
            level_p50=level,
            level_p99=None if level is None else 2 * level,
        )

    found = Rehearsal(
        plan_sha256="",
        offered_rps={},
        attainment={},
        stages=(stage(1.5), stage(None)),
        contradictions=(),
    )

    known, unknown = printed(capsys, rehearsal_summary(found))["stages"]

    assert (known["p50_us"], known["p99_us"], known["level_p50"]) == (1_500, 3_000, 1.5)
    assert (unknown["p50_us"], unknown["p99_us"]) == (None, None)


def test_a_search_for_the_highest_rate_says_what_each_step_attained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = RateSearch(start_rps=10.0)
    search.record(10.0, 300, 285)

    [step] = printed(capsys, search.result())["steps"]

    assert step["attainment"] == 0.95


def test_a_load_run_says_how_many_connections_it_had() -> None:
    late = Distribution(p50_us=1, p90_us=1, p99_us=1, p999_us=1, max_us=1, mean_us=1.0)
    report = Report(source="measured", models={}, total=summarise([]), lateness=late, connections=7)

    assert msgspec.to_builtins(report)["connections"] == 7
    assert lateness_line(report).endswith("at most 7 connections")
