"""Layers that move to a device while earlier ones run, over a device that copies as late as it may.

A device that only copies when it is waited for, and spoils what is not filled or was given back,
turns every wait that is missing into a wrong answer.
"""

import gc
import random
import threading
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.catalog.weights_files import weights_in
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import StageStart, TensorMemory
from headrace.serving.workers.frames import (
    AnyFrame,
    Failed,
    Finished,
    FrameReader,
    Load,
    Loaded,
    Run,
    Unload,
    Unloaded,
)
from headrace.serving.workers.worker import Worker

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
layers = pytest.importorskip("headrace.executors.torch_layers")
streamed = pytest.importorskip("headrace.executors.torch_streamed")
from helpers.late_device import LateDevice  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

ITEMS, WIDTH, WORDS = 2, 8, 16
LINEAR = 4


class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An embedding whose matrix is read again at the end, and matrices between."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.between = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LINEAR))

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for matrix in self.between:
            x = torch.tanh(matrix(x))
        return x @ self.words.weight.t()


class Network:
    """The network's file, its layers, and what it answers."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        module = Tied().eval()
        self.ids = torch.randint(0, WORDS, (ITEMS, 3))
        batch = torch.export.Dim("batch", min=1, max=64)
        path = folder / "tied.pt2"
        exported = torch.export.export(module, (self.ids,), dynamic_shapes=({0: batch},))
        torch.export.save(exported, path)
        graph = load_graph(path)
        self.content, self.weights = whole_model(graph), graph.weights
        self.input, [self.output] = graph.inputs[0].name, graph.outputs
        self.answer = module(self.ids).detach()
        program = layers.TorchProgram(
            layers.onnx.load_model_from_string(self.content), self.weights, "cpu"
        )
        heavy = [
            names[0] or names[1]
            for names, step in zip(program.step_names, program._steps, strict=True)
            if any(isinstance(program._values[r], torch.Tensor) for r in step.reads)
        ]
        self.layers = tuple(heavy)
        self.path = folder / "tied.onnx"
        self.path.write_bytes(self.content)

    def host(self, device: Any) -> Any:
        return layers.HostModel(self.content, self.weights, self.layers, device)

    def start(self, host: tuple[int, ...] = (), group: int = 1, **options: Any) -> StageStart:
        loaded = [i for i in range(len(self.layers)) if i not in host]
        transfers = tuple(tuple(loaded[i : i + group]) for i in range(0, len(loaded), group))
        return StageStart(layers=self.layers, host=host, transfers=transfers, **options)

    def load(self, start: StageStart | None, stage: int = 1) -> Load:
        return Load(
            stage=stage, name="tied", executor="late", path=str(self.path), weights=self.weights,
            inputs=(TensorSpec(name=self.input, dtype="int64", item_shape=(3,)),),
            outputs=(
                TensorSpec(name=self.output, dtype="float32", item_shape=(3, WORDS)),
            ),
            max_batch=ITEMS, p50_us=(1, 1), p99_us=(1, 1), seed=0, warm_up=False, start=start,
        )  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return Network(tmp_path_factory.mktemp("tied"))


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_every_choice_of_host_and_copied_layers_answers_as_the_network(network: Network) -> None:
    device = LateDevice()
    host = network.host(device)
    assert len(host.layers) == LINEAR + 2
    rng = random.Random(0)
    for _ in range(40):
        at_host = tuple(i for i in range(len(network.layers)) if rng.random() < 0.5)
        start = network.start(at_host, rng.randint(1, 4), waits_for_all=rng.random() < 0.2)
        resident = layers.ResidentModel(host, start)
        for _ in range(2):
            with torch.inference_mode():
                same(resident.run([network.ids])[0], network.answer)
        resident.leave()
        assert not device.held


def test_a_run_waits_for_what_it_needs_and_for_nothing_else(network: Network) -> None:
    device = LateDevice()
    host = network.host(device)
    resident = layers.ResidentModel(host, network.start(host=(0,)))
    asked = device.loading.asked
    assert device.told == [line for line in device.told if line.startswith("ask")]
    with torch.inference_mode():
        resident.run([network.ids])
    ran = [line for line in device.told if not line.startswith("ask")]
    # Each layer's transfer is made when that layer is reached: none is waited for early.
    assert ran == [f"{what} {i}" for i in range(1, asked + 1) for what in ("behind", "copied")]


def test_a_tied_matrix_is_copied_for_the_layer_that_is_loaded(network: Network) -> None:
    device = LateDevice()
    host = network.host(device)
    last = len(network.layers) - 1
    resident = layers.ResidentModel(host, network.start(host=tuple(range(last))))
    assert resident.size_bytes == host.layer_bytes(last)
    with torch.inference_mode():
        same(resident.run([network.ids])[0], network.answer)
    # From there, although the first layer reads it from the host.
    [memory] = device.held.values()
    places = range(memory.data_ptr(), memory.data_ptr() + memory.numel())
    assert all(tensor.data_ptr() in places for _, tensor in resident._bound[last])
    # And copied once, where both layers that read it are loaded.
    both = layers.ResidentModel(host, network.start(host=tuple(range(1, last))))
    assert both.size_bytes == host.layer_bytes(last)


class Halves(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Matrices that lie one behind the other in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.randn(2 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        first, second = self.both.chunk(2)
        return torch.tanh(x @ first) @ second.t()


@pytest.mark.parametrize("copied", [True, False])
def test_weights_that_begin_behind_others_are_found_there(tmp_path: Path, copied: bool) -> None:
    torch.manual_seed(1)
    module, x = Halves().eval(), torch.randn(ITEMS, WIDTH)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "halves.pt2")
    graph = load_graph(tmp_path / "halves.pt2")
    host = layers.HostModel(whole_model(graph), graph.weights, None, LateDevice())
    assert len(host.layers) == 1
    start = StageStart(
        layers=host.names, host=() if copied else (0,), transfers=((0,),) if copied else ()
    )
    with torch.inference_mode():
        same(layers.ResidentModel(host, start).run([x])[0], module(x).detach())


class Full(LateDevice):
    """Whatever is computed or put there has no content, as nothing has on the meta device."""

    name = "meta"


def test_a_model_is_taken_into_host_memory_without_the_device(network: Network) -> None:
    here, there = network.host(LateDevice()), network.host(Full())
    assert there.layers == here.layers
    read = {
        number: (place.offset, place.offset + place.size_bytes)
        for number, place in here.places.items()
    }
    assert there.places == here.places
    assert read
    for begin, end in read.values():
        assert torch.equal(there.block.bytes[begin:end], here.block.bytes[begin:end])


def test_weights_that_begin_at_one_byte_of_a_file_are_whole_in_host_memory(tmp_path: Path) -> None:
    numbers = np.arange(1, 17, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(numbers.tobytes())
    weights = []
    for name, count in (("short", 4), ("long", 16)):
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[count])
        proto.data_location = TensorProto.EXTERNAL
        stated = {"location": "w.bin", "offset": "0", "length": str(4 * count)}
        for key, value in stated.items():
            proto.external_data.add(key=key, value=value)
        weights.append(proto)
    nodes = [
        helper.make_node("Add", ["x", "short"], ["y"]),
        helper.make_node("Concat", ["y", "long"], ["z"], axis=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [20])
    graph = helper.make_graph(nodes, "both", [x], [z], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    files = weights_in(tmp_path / "stage.onnx", ["w.bin"])
    device = LateDevice()
    host = layers.HostModel(model.SerializeToString(), files, (), device)
    resident = layers.ResidentModel(host, streamed.whole(host))
    [found] = resident.run([torch.zeros(4)])
    assert found.tolist() == [*numbers[:4], *numbers]
    resident.leave()


def test_neighbours_of_one_transfer_are_one_copy(network: Network) -> None:
    device = LateDevice()
    layers.ResidentModel(network.host(device), network.start(group=len(network.layers)))
    assert device.loading.asked == 1


def test_memory_is_given_back_when_its_copies_are_made_and_not_before(network: Network) -> None:
    device = LateDevice()
    host = network.host(device)
    resident = layers.ResidentModel(host, network.start())
    assert device.held_bytes == resident.size_bytes > 0
    assert device.loading.done == 0
    with torch.inference_mode():
        resident.run([network.ids])
    [memory] = device.held.values()
    places = range(memory.data_ptr(), memory.data_ptr() + memory.numel())
    del memory
    resident.leave()
    assert device.loading.done == device.loading.asked
    assert not device.held
    # A device's memory is given back with the last tensor over it; what was asked is the fake's.
    asked = {id(tensor) for into, _ in device.loading._asked for tensor in (into, into._base)}
    assert not [
        tensor
        for tensor in gc.get_objects()
        if type(tensor) is torch.Tensor and tensor.data_ptr() in places and id(tensor) not in asked
    ]
    resident.leave()
    again = layers.ResidentModel(host, network.start())
    with torch.inference_mode():
        same(again.run([network.ids])[0], network.answer)


def test_layers_that_are_not_in_the_file_are_refused(network: Network) -> None:
    for names in (("nowhere",), (network.layers[1], network.layers[0])):
        with pytest.raises(ModelError, match="measure the model's layers again"):
            layers.HostModel(network.content, network.weights, names, LateDevice())
    start = StageStart(layers=network.layers, host=(), transfers=((99,),))
    with pytest.raises(ModelError, match="copies layer 99"):
        layers.ResidentModel(network.host(LateDevice()), start)


class Served:
    """A worker whose stages are on such a device, and what it says."""

    def __init__(
        self, network: Network, device: LateDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.said: list[AnyFrame] = []
        self.network, self.kept = network, streamed.KeptModels(device)
        self._reader, self._heard = FrameReader(), threading.Condition()
        monkeypatch.setattr(
            "headrace.serving.workers.worker.open_stage",
            lambda load, memory: streamed.StreamedExecutor(load, memory, self.kept),
        )
        self._arena = TensorMemory(mmap(-1, 1 << 16))
        self.worker = Worker(self._arena, send=self._hear)
        load = network.load(None)
        self._arena.tensor(load.inputs[0], ITEMS, 0)[...] = network.ids.numpy()
        self._answer = self._arena.tensor(load.outputs[0], ITEMS, 4096)

    def _hear(self, data: bytes) -> None:
        with self._heard:
            self.said += self._reader.feed(data)
            self._heard.notify_all()

    def until(self, kind: type) -> AnyFrame:
        with self._heard:
            assert self._heard.wait_for(lambda: any(isinstance(s, kind) for s in self.said), 30)
            return next(s for s in self.said if isinstance(s, kind))

    def run(self, stage: int = 1) -> AnyFrame | None:
        self._answer[...] = 0
        return self.worker.answer(Run(5, 0, stage, ITEMS, (0,), (4096,)))

    def right(self) -> bool:
        return bool(np.allclose(self._answer, self.network.answer.numpy(), atol=1e-5))


def test_a_worker_runs_a_stage_that_is_still_loading_and_says_later_that_it_is_there(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(network, LateDevice(), monkeypatch)
    assert served.worker.answer(network.load(network.start(host=(0,)))) is None
    assert isinstance(served.run(), Finished)
    assert served.right()
    assert isinstance(served.until(Loaded), Loaded)
    assert served.worker.answer(Unload(1)) == Unloaded(1)
    assert isinstance(served.run(), Failed)
    served.worker.close()


def test_an_unload_of_a_stage_that_is_loading_comes_behind_its_load_and_frees(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = LateDevice()
    served = Served(network, device, monkeypatch)
    served.worker.answer(network.load(network.start(), 1))
    of_one = device.held_bytes
    served.worker.answer(network.load(network.start(), 2))
    served.worker.answer(Unload(2))
    assert [frame.stage for frame in served.said if isinstance(frame, Loaded)] == [1, 2]
    assert device.held_bytes == of_one > 0
    assert isinstance(served.run(1), Finished)
    assert served.right()
    served.worker.close()
    assert not device.held


def test_copies_that_fail_are_that_models_failure_and_what_it_took_is_given_back(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(network, LateDevice(fails_at=2), monkeypatch)
    assert served.worker.answer(network.load(network.start())) is None
    failed = served.until(Failed)
    assert isinstance(failed, Failed)
    assert (failed.batch, failed.stage) == (-1, 1)
    assert "fallen off the bus" in failed.message
    assert not failed.no_room
    assert not [frame for frame in served.said if isinstance(frame, Loaded)]
    served.worker.answer(Unload(9))
    assert not served.kept.of(network.load(network.start())).device.held
    served.worker.close()


def test_a_model_without_room_is_refused_and_others_stay(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = network.host(LateDevice()).block.bytes.numel()
    device = LateDevice(room_bytes=size + 100)
    served = Served(network, device, monkeypatch)
    assert served.worker.answer(network.load(network.start())) is None
    refused = served.worker.answer(network.load(network.start(), 2))
    assert isinstance(refused, Failed)
    assert "do not fit" in refused.message
    assert refused.no_room
    assert isinstance(served.run(1), Finished)
    # What leaves makes the room.
    served.worker.answer(Unload(1))
    assert served.worker.answer(network.load(network.start(), 2)) is None
    assert isinstance(served.run(2), Finished)
    assert served.right()
    served.worker.close()


def test_copies_of_a_run_that_fails_are_made_before_it_is_said(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs' memory is given to others then."""
    device = LateDevice()
    served = Served(network, device, monkeypatch)
    assert served.worker.answer(network.load(network.start(host=()))) is None
    assert isinstance(served.until(Loaded), Loaded)
    waited: list[str] = []
    behind = SimpleNamespace(wait=lambda: waited.append("wait"))
    monkeypatch.setattr(device.execution, "mark", lambda: behind)

    def refuse(found: Any, into: Any, name: str) -> None:
        waited.clear()
        raise ModelError(f"output {name!r} is of another shape")

    monkeypatch.setattr(streamed, "copied_out", refuse)
    assert isinstance(served.run(), Failed)
    assert waited == ["wait"]
    served.worker.close()


def test_a_model_is_read_from_its_file_once_while_that_stays_the_same(
    network: Network, tmp_path: Path
) -> None:
    opened: list[int] = []

    def open(*arguments: Any) -> Any:
        opened.append(1)
        return layers.HostModel(*arguments)

    kept = streamed.KeptModels(LateDevice(), open)
    load = network.load(network.start())
    assert kept.of(load) is kept.of(load)
    other = network.load(network.start())
    kept.of(other)
    assert len(opened) == 1
    # Loads make many objects, and the collector need not look at PyTorch's for them.
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
    kept.of(network.load(StageStart(layers=network.layers[:2], host=(), transfers=((0, 1),))))
    assert len(opened) == 2
