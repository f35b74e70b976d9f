"""Rounds, visits, budgets and percentiles of timing, on clocks that tasks advance."""

from dataclasses import dataclass, field

from headrace.profiling.timing import MAX_ROUNDS, MIN_ROUNDS, Timed, time_rounds

MS = 1_000_000


@dataclass
class FakeCore:
    """Runs tasks of known length; its clocks are the sum of what ran, and of what disturbed it."""

    busy_ns: int = 0
    stolen_ns: int = 0
    ran: list[str] = field(default_factory=list)

    def task(self, name: str, length_ns: int, stolen_ns: int = 0) -> Timed:
        def run() -> None:
            self.busy_ns += length_ns
            self.stolen_ns += stolen_ns
            self.ran.append(name)

        return Timed(run=run)

    def core(self) -> int:
        return self.busy_ns

    def wall(self) -> int:
        return self.busy_ns + self.stolen_ns


def test_long_tasks_take_turns_so_that_a_disturbance_hits_all_alike() -> None:
    core = FakeCore()
    tasks = [core.task("a", 20 * MS), core.task("b", 30 * MS)]

    rounds = time_rounds(tasks, budget_s=0.25, core=core.core, wall=core.wall)

    assert rounds == 4
    assert core.ran == ["a", "b"] * (1 + rounds)


def test_what_is_done_before_each_run_is_not_timed() -> None:
    core = FakeCore()
    task = core.task("run", 2 * MS)
    task.before = core.task("before", 5 * MS).run

    time_rounds([task], budget_s=0.2, core=core.core, wall=core.wall)

    assert core.ran == ["before", "run"] * (len(core.ran) // 2)
    assert set(task.samples_ns) == {2 * MS}


def test_the_warm_up_run_is_not_counted() -> None:
    core = FakeCore()
    task = core.task("a", 20 * MS)

    rounds = time_rounds([task], budget_s=0.1, core=core.core, wall=core.wall)

    assert len(task.samples_ns) == rounds
    assert len(core.ran) == rounds + 1


def test_short_tasks_repeat_within_a_visit_after_an_untimed_run() -> None:
    core = FakeCore()
    task = core.task("a", 1 * MS)

    rounds = time_rounds([task], budget_s=0.034, core=core.core, wall=core.wall)

    assert rounds == 3
    assert len(task.samples_ns) == 10 * rounds
    assert len(core.ran) == 1 + 11 * rounds


def test_the_budget_bounds_the_rounds() -> None:
    core = FakeCore()
    tasks = [core.task("a", 100 * MS), core.task("b", 200 * MS)]

    time_rounds(tasks, budget_s=3.0, core=core.core, wall=core.wall)

    assert 2_400 * MS < core.wall() <= 3_000 * MS


def test_a_budget_that_is_too_small_still_gives_a_few_samples() -> None:
    core = FakeCore()
    task = core.task("a", 1_000 * MS)

    time_rounds([task], budget_s=0.5, core=core.core, wall=core.wall)

    assert len(task.samples_ns) == MIN_ROUNDS


def test_trivial_tasks_end_long_before_a_large_budget() -> None:
    core = FakeCore()
    task = core.task("a", 1_000)

    assert time_rounds([task], budget_s=3_600.0, core=core.core, wall=core.wall) == MAX_ROUNDS
    assert core.wall() < 1_000 * MS


def test_progress_rises_to_one() -> None:
    core = FakeCore()
    seen: list[float] = []

    time_rounds(
        [core.task("a", 20 * MS)],
        budget_s=0.2,
        core=core.core,
        wall=core.wall,
        on_progress=seen.append,
    )

    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_p99_of_few_samples_is_the_largest() -> None:
    task = Timed(run=lambda: None, samples_ns=[3_000, 1_000, 9_000, 2_000])

    assert (task.p50_us, task.p99_us) == (2, 9)


def test_p99_of_many_samples_leaves_the_outlier_out() -> None:
    samples_ns = [10_000_000, *(us * 1_000 for us in range(199, 0, -1))]
    assert Timed(run=lambda: None, samples_ns=samples_ns).p99_us == 198


def test_a_latency_is_at_least_one_microsecond() -> None:
    task = Timed(run=lambda: None, samples_ns=[10, 20, 30])

    assert (task.p50_us, task.p99_us) == (1, 1)


def test_what_other_programs_do_on_the_core_counts_for_the_budget_but_not_for_the_task() -> None:
    core = FakeCore()
    task = core.task("a", 20 * MS, stolen_ns=30 * MS)

    rounds = time_rounds([task], budget_s=0.25, core=core.core, wall=core.wall)

    assert rounds == 4
    assert task.p99_us == 20_000
