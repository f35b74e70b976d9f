"""Whatever happens to machines, workers and tensors on their way, answers are right and given once.

Over simulated time, with the transport that is used between real machines. A machine is a piece of
memory and a session; frames reach it in order, after a while. What a machine has sent on before it
is lost still arrives later, as from a node behind a broken network; a new session's memory is full
of something else.
"""

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.workers.arena import Allocator, Arena
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Cancel,
    Expect,
    Push,
)
from headrace.serving.workers.remote.link import Address
from headrace.serving.workers.remote.transport import NetworkTransport
from headrace.serving.workers.stage_io import Home
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand

STAGE_US, LINK_US, HORIZON_US = 8_000, 300, 300_000
ITEM_BYTES = 4 * WIDTH
MEMORY_BYTES = 1 << 16
PROFILE = profile_by_hand(["a", "b", "y"], batch_size=4, stage_us=STAGE_US, device="cpu")
LIMITED = plan_by_hand([2, 2, 2], 4, 400_000, STAGE_US, "cpu", nodes=2, gbps=0.01)
UNLIMITED = plan_by_hand([2, 1, 2], 4, 400_000, STAGE_US, "cpu", nodes=3, gbps=None)
"""Links that take no time in the plan, so that the driver alone sees that tensors are elsewhere."""


class Machine:
    """What `NetworkTransport` sees of a link, and the agent behind it."""

    def __init__(self, node: str, number: int, world: "World") -> None:
        self.node, self.address = node, Address(host=node, port=number)
        self.world = world
        self.session = 0
        self.tensors: Any = None
        self.begin()

    def begin(self) -> None:
        self.world.sessions += 1
        self.session = self.world.sessions
        self.memory = bytearray([0xEE]) * MEMORY_BYTES
        self.allocator: Allocator | None = Allocator(MEMORY_BYTES)
        self.expected: dict[int, int] = {}

    @property
    def is_up(self) -> bool:
        return self.session != 0

    @property
    def is_admitted(self) -> bool:
        return self.is_up

    def cut_off(self, reason: str) -> None:
        self.world.lose(self.node, 20_000)

    @property
    def home(self) -> Home:
        return f"{self.node}/{self.session or 'down'}"

    def lose(self) -> None:
        home = self.home
        self.session, self.allocator = 0, None
        for worker in self.world.workers:
            if worker.machine is self:
                worker.lose()
        self.tensors.link_down(home)

    def put(self, offset: int, payload: memoryview, on_sent: Any, more: bool) -> None:
        data = bytes(payload)
        self.world.later(LINK_US, self, lambda: self.write(offset, data))
        on_sent()

    def write(self, offset: int, data: bytes) -> None:
        self.memory[offset : offset + len(data)] = data

    def send(self, frame: AnyRemoteFrame) -> None:
        self.world.later(LINK_US, self, partial(self._take, frame))

    def _take(self, frame: AnyRemoteFrame) -> None:
        match frame:
            case Expect(transfer, offset, _):
                self.expected[transfer] = offset
            case Cancel(transfer):
                self.expected.pop(transfer, None)
            case Push() if self.world.broken(self.node, frame.host):
                self.world.later(
                    LINK_US, self, partial(self.tensors.undelivered, frame.transfer, "a test")
                )
            case Push():
                data = bytes(self.memory[frame.offset : frame.offset + frame.length])
                target = self.world.machine_at(frame.host)
                # Behind the receiver's Expect, which left before.
                took_us = LINK_US + self.world.script.draw(st.integers(0, 20_000), label="way_us")
                at_us = self.world.clock.now_us() + took_us
                self.world.clock.call_at(
                    at_us, partial(target.receive, frame.session, frame.transfer, data)
                )

    def receive(self, session: int, transfer: int, data: bytes) -> None:
        """Tensors come in, whoever has sent them and whatever became of it."""
        if session != self.session or transfer not in self.expected:
            return
        self.write(self.expected.pop(transfer), data)
        self.world.later(LINK_US, self, lambda: self.tensors.arrived(transfer))


@dataclass(slots=True)
class AddingWorker:
    """Adds one to each byte, in its machine's memory, when its time is over."""

    slot: int
    machine: Machine
    world: "World"
    up: bool = True
    life: int = 0
    driver: Any = field(init=False)

    @property
    def home(self) -> Home:
        return self.machine.home

    def run(self, frame: Run) -> None:
        answer_bytes = self.world.transport.answer_bytes(self.home, frame)
        took_us = self.world.script.draw(st.integers(1, 20_000), label="took_us")
        self.world.later(LINK_US + took_us, self, partial(self._end, frame, answer_bytes))

    def _end(self, frame: Run, answer_bytes: int) -> None:
        (source,), (target,) = frame.input_offsets, frame.output_offsets
        size, machine = frame.size * ITEM_BYTES, self.machine
        read = machine.memory[source : source + size]
        machine.write(target, bytes((byte + 1) % 256 for byte in read))
        answer = bytes(machine.memory[target : target + answer_bytes])
        self.world.later(LINK_US, self, partial(self._report, frame, answer))

    def _report(self, frame: Run, answer: bytes) -> None:
        if answer:
            place = self.world.transport.place_answer(
                self.home, frame.output_offsets[0], len(answer)
            )
            assert place is not None, "what was ordered is wanted"
            place[:] = answer
        now_us = self.world.clock.now_us()
        report = Finished(frame.batch, frame.attempt, frame.stage, now_us - 1, now_us)
        self.driver.on_ran(self.slot, report)

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def lose(self) -> None:
        if self.up:
            self.up = False
            self.life += 1
            self.driver.on_slot_lost(self.slot)

    def find(self) -> None:
        if not self.up and self.machine.is_up:
            self.up = True
            self.driver.on_slot_gained(self.slot)


class World:
    """A data plane over machines in simulated time."""

    def __init__(self, plan: Any, arena: Arena, script: st.DataObject) -> None:
        self.clock, self.script = SimClock(), script
        self.sessions = 0
        self.workers: list[AddingWorker] = []
        nodes = list(dict.fromkeys(slot.node for slot in plan.slots))
        self.machines = {node: Machine(node, i, self) for i, node in enumerate(nodes)}
        self.transport = NetworkTransport(arena, self.machines, self.clock)  # type: ignore[arg-type]
        self.workers = [
            AddingWorker(i, self.machines[slot.node], self) for i, slot in enumerate(plan.slots)
        ]
        self.plane = DataPlane(
            plan,
            {"m": PROFILE},
            clock=self.clock,
            call_soon=lambda callback: self.clock.call_at(self.clock.now_us(), callback),
            links=self.workers,
            transport=self.transport,
            sink=None,
        )
        for worker in self.workers:
            worker.driver = self.plane.driver
        self.results: dict[int, list[Answer | Refusal]] = {}
        self._broken: set[tuple[str, str]] = set()
        """(sender, receiver): nothing gets through."""
        paths = [(one, other) for one in nodes for other in nodes if one != other]
        self.transport.paths._needed = tuple(paths)

    def broken(self, node: str, other: str) -> bool:
        return (node, other) in self._broken

    def cut_path(self, node: str, other: str, for_us: int) -> None:
        path = (node, other)
        self._broken.add(path)
        self.clock.call_at(self.clock.now_us() + for_us, partial(self._broken.discard, path))

    def machine_at(self, host: str) -> Machine:
        return self.machines[host]

    def later(self, after_us: int, whose: Machine | AddingWorker, act: Any) -> None:
        """Unless its session, or its life, is over by then."""
        machine = whose if isinstance(whose, Machine) else whose.machine
        session, life = machine.session, getattr(whose, "life", 0)

        def run() -> None:
            if machine.session == session != 0 and getattr(whose, "life", 0) == life:
                act()

        self.clock.call_at(self.clock.now_us() + after_us, run)

    def submit(self, number: int, items: int) -> None:
        self.results[number] = []
        content = bytes([number % 251]) * (ITEM_BYTES * items)
        self.plane.submit(
            Inference(
                model="m",
                items=items,
                inputs=(content,),
                on_done=self.results[number].append,
                timeout_us=None,
            )
        )

    def lose(self, node: str, back_after_us: int) -> None:
        machine = self.machines[node]
        if machine.is_up:
            machine.lose()
            self.clock.call_at(self.clock.now_us() + back_after_us, partial(self._find, machine))

    def _find(self, machine: Machine) -> None:
        machine.begin()
        for worker in self.workers:
            if worker.machine is machine:
                worker.find()

    def lose_worker(self, slot: int) -> None:
        worker = self.workers[slot % len(self.workers)]
        worker.lose()
        self.clock.call_at(self.clock.now_us() + 5_000, worker.find)


instants = st.integers(0, HORIZON_US)


@given(
    script=st.data(),
    limited=st.booleans(),
    arrivals=st.lists(st.tuples(instants, st.integers(1, 6)), min_size=1, max_size=12),
    cuts=st.lists(
        st.tuples(instants, st.integers(0, 2), st.integers(0, 2), st.integers(1, HORIZON_US)),
        max_size=3,
    ),
    losses=st.lists(st.tuples(instants, st.integers(0, 2), st.integers(1, 30_000)), max_size=4),
    deaths=st.lists(st.tuples(instants, st.integers(0, 5)), max_size=3),
)
def test_whatever_is_lost_answers_are_right_and_no_memory_is(
    script: st.DataObject,
    limited: bool,
    arrivals: list[tuple[int, int]],
    cuts: list[tuple[int, int, int, int]],
    losses: list[tuple[int, int, int]],
    deaths: list[tuple[int, int]],
) -> None:
    with closing(Arena(1 << 20)) as arena:
        world = World(LIMITED if limited else UNLIMITED, arena, script)
        names = list(world.machines)
        for number, (at_us, items) in enumerate(arrivals):
            world.clock.call_at(at_us, partial(world.submit, number, items))
        for at_us in range(0, 4 * HORIZON_US, 50_000):
            world.clock.call_at(at_us, world.transport.look)
        for at_us, node, other, for_us in cuts:
            ends = names[node % len(names)], names[other % len(names)]
            world.clock.call_at(at_us, partial(world.cut_path, *ends, for_us))
        for at_us, node, back_us in losses:
            world.clock.call_at(at_us, partial(world.lose, names[node % len(names)], back_us))
        for at_us, slot in deaths:
            world.clock.call_at(at_us, partial(world.lose_worker, slot))
        world.clock.run()

        assert len(world.results) == len(arrivals)
        for number, results in world.results.items():
            [result] = results
            if isinstance(result, Answer):
                [output] = result.outputs
                assert set(output) == {(number % 251) + 3}, "of another batch, or of another time"
            else:
                assert cuts or losses or deaths or result.reason == "deadline"
        assert arena.used_bytes == 0
        for machine in world.machines.values():
            assert machine.allocator is not None
            assert machine.allocator.used_bytes == 0
