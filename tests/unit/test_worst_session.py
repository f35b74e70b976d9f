"""What a plan attains in the worst of several sessions."""

from collections.abc import Mapping

from headrace.simulation.worst_session import worst_of


class Sessions:
    """Attain what is stated for their seeds, and note how long they are."""

    def __init__(self, shares: Mapping[int, tuple[float, float]]) -> None:
        self.run: list[tuple[int, int]] = []
        self._shares = shares

    def __call__(self, seed: int, shorter: int) -> Mapping[str, float]:
        self.run.append((seed, shorter))
        return dict(zip("ab", self._shares[seed], strict=True))


def test_the_worst_of_each_counts_and_no_session_follows_one_that_is_not_enough() -> None:
    sessions = Sessions({1: (0.99, 1.0), 1001: (1.0, 0.94), 2001: (0.0, 0.0)})
    assert worst_of(sessions, 1, 0.95, sessions=3, first_look=8) == {"a": 0.99, "b": 0.94}
    assert sessions.run == [(1, 8), (1, 1), (1001, 1)]


def test_a_plan_that_misses_far_too_much_in_a_short_session_has_no_whole_one() -> None:
    sessions = Sessions({1: (0.84, 1.0)})
    assert worst_of(sessions, 1, 0.95, sessions=3, first_look=8) == {"a": 0.84, "b": 1.0}
    assert sessions.run == [(1, 8)]
