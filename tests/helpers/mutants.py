"""The dispatcher and the simulator's loop as plain Python, as they are or with one mistake in them.

    NUMBA_DISABLE_JIT=1 python -m helpers.mutants MUTANT,MUTANT... < expected.json

runs sessions of `helpers.four_ways` uncompiled, with each mutant in turn, and prints per mutant one
line: its name, then the first session and way whose events are not the expected ones, or "same".
`expected.json`: {seed: digest}. The mutant "none" is the source as it is.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

# What takes long to import, and is the same in all of them. Nothing of ours: each process below
# imports that with its own mistake.
import msgspec
import numba
import numpy

HEAVY = (msgspec, numba, numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A piece of a module's source, and the mistake that is made in it."""

    module: str
    source: str
    mistaken: str
    of_items: bool = False
    """Found by sessions of requests of many items."""
    of_starts: bool = False
    """Found by sessions of models that come and go."""


LOOP, KERNEL = "headrace.simulation.loop", "headrace.dispatch.kernel."
MUTANTS = {
    "loads-take-longer": Mutant(
        module=LOOP,
        source="at_us + took_us, LOADED",
        mistaken="at_us + took_us + 1, LOADED",
        of_starts=True,
    ),
    "loads-have-no-spread": Mutant(
        module=LOOP,
        source="            if len(session.load_sigma):\n",
        mistaken="            if len(session.load_sigma) < 0:\n",
        of_starts=True,
    ),
    "starts-wait-for-nothing": Mutant(
        module=LOOP,
        source="    if line.cold:\n",
        mistaken="    if line.cold > 1:\n",
        of_starts=True,
    ),
    "starts-hold-the-slot": Mutant(
        module=KERNEL + "provision.order",
        source="begins_at + max(0, mine.last_us - mine.exec_us + late_us(s, slot, model))",
        mistaken="begins_at",
        of_starts=True,
    ),
    "memory-is-given-twice": Mutant(
        module=KERNEL + "provision.loads",
        source="here.held_bytes + s.starts[model].bytes > here.memory_bytes",
        mistaken="here.held_bytes + s.starts[model].bytes > 2 * here.memory_bytes",
        of_starts=True,
    ),
    "links-are-shared": Mutant(
        module=KERNEL + "provision.loads",
        source="        if helper >= 0:\n            s.slots[helper].taken = 1\n",
        mistaken="",
        of_starts=True,
    ),
    "switches-are-not-shared": Mutant(
        module=KERNEL + "provision.loads",
        source="    return s.slots[slot].link\n",
        mistaken="    return slot\n",
        of_starts=True,
    ),
    "ties-reversed": Mutant(
        module=LOOP,
        source="one.at_us == at_us and one.sequence < sequence",
        mistaken="one.at_us == at_us and one.sequence > sequence",
    ),
    "arrivals-go-last": Mutant(
        module=LOOP,
        source="progress.arrival_sequence < heap[0].sequence",
        mistaken="progress.arrival_sequence > heap[0].sequence",
    ),
    "transfers-take-no-time": Mutant(
        module=LOOP,
        source="ends_at = at_us + journal[i + 7]",
        mistaken="ends_at = at_us",
    ),
    "runs-take-longer": Mutant(
        module=LOOP,
        source="        return p50_us\n",
        mistaken="        return p50_us + 1\n",
    ),
    "links-are-free": Mutant(
        module=KERNEL + "links",
        source="return round(size_bytes / speed) if speed > 0 else 0",
        mistaken="return 0",
    ),
    "deadlines-are-strict": Mutant(
        module=KERNEL + "reservation",
        source="slack_us(s, route, size) <= tightest(s, model, size)",
        mistaken="slack_us(s, route, size) < tightest(s, model, size)",
    ),
    "gaps-must-be-wider": Mutant(
        module=KERNEL + "reservation_tables",
        source="interval.start - start >= length_us",
        mistaken="interval.start - start > length_us",
    ),
    "priorities-reversed": Mutant(
        module=KERNEL + "queues",
        source="return a.priority < b.priority",
        mistaken="return a.priority > b.priority",
    ),
    "late-is-in-time": Mutant(
        module=KERNEL + "reactive",
        source="path_us(s, route, place, size) > deadline_at",
        mistaken="path_us(s, route, place, size) >= deadline_at",
    ),
    "windows-are-ignored": Mutant(
        module=KERNEL + "batch_aware",
        source="s.slots[slot].due_at - mine.collect_us <= now_us",
        mistaken="s.slots[slot].due_at <= now_us",
    ),
    "places-are-late": Mutant(
        module=KERNEL + "malleable.places",
        source="mine.ready_at = now_us + s.rules[0].move_us if had else now_us",
        mistaken="mine.ready_at = now_us + s.rules[0].move_us + 1",
        of_items=True,
    ),
    "deadlines-are-ignored": Mutant(
        module=KERNEL + "malleable.by_deadline",
        source="if end_at > theirs.deadline_at:",
        mistaken="if end_at < 0:",
        of_items=True,
    ),
}


class _Mistaken(SourceFileLoader):
    """Reads a module with the mistake in it, and keeps no bytecode of that."""

    mutant: Mutant

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path).decode()
        found = source.count(self.mutant.source)
        if found != 1:
            raise ValueError(f"{self.mutant.source!r} is {found} times in {path}, not once")
        return source.replace(self.mutant.source, self.mutant.mistaken).encode()

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(path)


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Mistaken(name, spec.origin)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def first_difference(expected: Mapping[str, str]) -> str:
    """Where events are other than expected: "seed way"; "same": nowhere. Seeds "items-N" are of
    requests of many items, "starts-N" of models that come and go."""
    from helpers.four_ways import WAYS, digest, random_trace
    from helpers.malleable import ITEM_WAYS, malleable_trace
    from helpers.provisioned import provisioned_trace

    for seed, right in expected.items():
        if seed.startswith("items-"):
            trace, offered = malleable_trace(int(seed.removeprefix("items-")))
            ways = {name: partial(way, trace, offered) for name, way in ITEM_WAYS.items()}
        else:
            number = int(seed.removeprefix("starts-"))
            trace = (random_trace if seed.isdigit() else provisioned_trace)(number)
            ways = {name: partial(way, trace) for name, way in WAYS.items()}
        for name, way in ways.items():
            try:
                found = digest(way())
            except (IndexError, AssertionError, ValueError, KeyError) as error:
                found = type(error).__name__
            if found != right:
                return f"seed {seed}, {name}"
    return "same"


def main() -> None:
    expected = json.load(sys.stdin)
    for name in sys.argv[1].split(","):
        if os.fork() == 0:
            if name != "none":
                sys.meta_path.insert(0, _Finder(MUTANTS[name]))
            sys.stdout.write(f"{name}: {first_difference(expected)}\n")
            sys.stdout.flush()
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
