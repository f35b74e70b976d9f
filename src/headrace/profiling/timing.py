"""Fair timing of many short tasks on a machine that is never quite still.

Tasks are visited in rounds. A disturbance of a second then touches one visit of a few tasks
instead of all repeats of one, and slow drift (frequency, temperature) touches all alike.

A run is timed as its kind of executor says (`executors.base.Measurement`). On a core that is the
processor time of its thread. A slot is a core of its own and a session of one thread never waits,
so on an idle machine that is the wall time; on a busy one it leaves out what other programs did on
the core meanwhile. Wall time did not: with other programs on a sixth of the core, the blocks of one
model took 1.6 times as long as the model.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.domain.percentiles import percentile

Clock = Callable[[], int]
"""Nanoseconds, monotonic."""

VISIT_NS = 10_000_000
"""A task shorter than this repeats within a visit, so that its p99 rests on more samples."""
MAX_RUNS_PER_VISIT = 20
MAX_ROUNDS = 25
MIN_ROUNDS = 2


@dataclass(slots=True, kw_only=True)
class Timed:
    """A task and the durations of its runs."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Done before each run, and not timed."""
    samples_ns: list[int] = field(default_factory=list)

    @property
    def p50_us(self) -> int:
        return max(1, round(percentile(sorted(self.samples_ns), 500) / 1000))

    @property
    def p99_us(self) -> int:
        """Of fewer than 100 samples: the largest."""
        return max(self.p50_us, round(percentile(sorted(self.samples_ns), 990) / 1000))


def time_rounds(
    tasks: Sequence[Timed],
    budget_s: float,
    *,
    core: Clock,
    wall: Clock = time.perf_counter_ns,
    on_progress: Callable[[float], None] = lambda done: None,
) -> int:
    """Run all tasks in rounds until the budget is spent, and append to their samples.

    Each task first runs once untimed: ONNX Runtime plans its memory on the first run of a shape.
    Before repeats within a visit there is one more untimed run, which finds the caches as a slot
    that serves one stage leaves them. At least `MIN_ROUNDS` rounds are run whatever the budget.

    Args:
        budget_s: seconds to spend, warm-up included.
        core: times the runs; of a device's kind of executor, `Measurement.timer_ns`.
        wall: times the budget.
        on_progress: called with the fraction done, in [0, 1].

    Returns:
        The number of rounds.
    """
    started_ns = wall()
    budget_ns = round(budget_s * 1e9)
    estimates_ns = []
    for task in tasks:
        task.before()
        before_ns = core()
        task.run()
        estimates_ns.append(max(1, core() - before_ns))
        on_progress(min(0.99, (wall() - started_ns) / budget_ns))
    rounds = 0
    round_ns = wall() - started_ns
    while rounds < MAX_ROUNDS:
        spent_ns = wall() - started_ns
        if rounds >= MIN_ROUNDS and spent_ns + round_ns > budget_ns:
            break
        for index, task in enumerate(tasks):
            estimates_ns[index] = _visit(task, estimates_ns[index], core)
            done = max((wall() - started_ns) / budget_ns, rounds / MAX_ROUNDS)
            on_progress(min(0.99, done))
        rounds += 1
        round_ns = wall() - started_ns - spent_ns
    on_progress(1.0)
    return rounds


def _visit(task: Timed, estimate_ns: int, core: Clock) -> int:
    """Time one visit of a task; returns its shortest run, the estimate for the next visit."""
    runs = max(1, min(MAX_RUNS_PER_VISIT, VISIT_NS // estimate_ns))
    if runs > 1:
        task.before()
        task.run()
    shortest_ns = VISIT_NS * MAX_RUNS_PER_VISIT
    for _ in range(runs):
        task.before()
        before_ns = core()
        task.run()
        took_ns = core() - before_ns
        task.samples_ns.append(took_ns)
        shortest_ns = min(shortest_ns, took_ns)
    return max(1, shortest_ns)
