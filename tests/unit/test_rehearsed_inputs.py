"""A rehearsal whose requests were refused for what was in them."""

import pytest

from headrace.commands.rehearse import warn
from headrace.domain.request import Outcome
from headrace.reporting.rehearsal import Rehearsal, refused_inputs

SAID = "app 'odd': unknown mode"


def ended(reason: str, count: int) -> list[Outcome]:
    ended_at_us = None if reason else 10
    outcome = Outcome(arrived_at_us=0, deadline_at_us=100, ended_at_us=ended_at_us, reason=reason)
    return [outcome] * count


@pytest.mark.parametrize("reason", ["invalid-input", "app-error", "http-400"])
def test_inputs_that_were_refused_are_named_with_what_was_said_and_what_to_give(
    reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = refused_inputs({"odd": ended(reason, 19) + ended("", 1)}, {"odd": {reason: SAID}})

    warn(
        Rehearsal(
            plan_sha256="",
            offered_rps={},
            attainment={},
            stages=(),
            contradictions=(),
            refused=tuple(found.values()),
        )
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "the rehearsal says little: odd: 19 of 20 requests were refused" in said
    assert f"has {reason}: {SAID}" in said
    assert "--input" in said


@pytest.mark.parametrize(
    "outcomes",
    [
        ended("", 20),
        ended("invalid-input", 1) + ended("", 19),
        ended("invalid-input", 5) + ended("deadline", 5) + ended("", 10),
        [],
    ],
)
def test_what_was_answered_or_missed_for_want_of_time_says_nothing_of_inputs(
    outcomes: list[Outcome],
) -> None:
    assert refused_inputs({"odd": outcomes}, {}) == {}
