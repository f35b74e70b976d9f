"""PyTorch's exports: cut and served, they answer as PyTorch does."""

from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.table import executor, kind_for
from headrace.profiling.items import input_specs
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.pt2_archives import call, chain_archive, write_archive
from helpers.torch_networks import example, export, network

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
TorchModel = pytest.importorskip("headrace.executors.torch_model").TorchModel

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = network("small")
    return export(model, example("small"), tmp_path_factory.mktemp("models") / "small.pt2")


def profiled(path: Path, blocks: int = 3) -> Profile:
    options = ProfileOptions(blocks=blocks, max_batch=2, budget_s=0.05, profile_folder=path.parent)
    return profile_model(path, options)


def answers(path: Path, *inputs: np.ndarray) -> Sequence[np.ndarray]:
    """By the uncut file."""
    graph = load_graph(path)
    model = TorchModel(whole_model(graph), graph.weights)
    names = [tensor.name for tensor in graph.inputs]
    answered: Sequence[np.ndarray] = model.run(graph.outputs, dict(zip(names, inputs, strict=True)))
    return answered


def by_workers(profile: Profile, folder: Path, x: np.ndarray) -> list[np.ndarray]:
    """By all blocks, each a stage in a worker's memory, one after the other."""
    memory = mmap(-1, 1 << 22)
    arena = TensorMemory(memory)
    specs, taken = profile.inputs, [0]
    arena.tensor(specs[0], len(x), 0)[...] = x
    free = 1 << 20
    for number, block in enumerate(profile.blocks):
        stage = StageToLoad(
            name=f"m/p/{number}",
            path=str(stage_path(profile, folder, number, number + 1)),
            weights=stage_weights(profile, folder),
            inputs=specs,
            outputs=block.cut,
            max_batch=2,
            p50_us=(1, 1),
            p99_us=(1, 1),
            seed=0,
        )
        opened = executor("torch").open
        assert opened is not None
        given = [free + (i << 18) for i in range(len(block.cut))]
        opened(stage, arena).run(len(x), taken, given)
        specs, taken, free = block.cut, given, free + (1 << 19)
    return [arena.tensor(spec, len(x), at).copy() for spec, at in zip(specs, taken, strict=True)]


def test_an_export_answers_as_pytorch_does_whole_and_cut(small: Path) -> None:
    x = example("small")
    with torch.no_grad():
        wanted = [tensor.numpy() for tensor in network("small")(x)]
    profile = profiled(small)

    assert len(profile.blocks) == 3
    assert model_format(profile, small.parent) == "torch"
    assert kind_for("cpu", "auto", "torch") == "torch"
    for got in (answers(small, x.numpy()), by_workers(profile, small.parent, x.numpy())):
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_model_with_free_lengths_is_cut_at_one_length(tmp_path: Path) -> None:
    class Encoder(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(10, 8)
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, ids: Any) -> Any:
            batch, length = ids.shape
            x = self.first(self.words(ids)).view(batch * length, 8)
            return self.second(torch.relu(x).view(batch, length, 8)) / length

    torch.manual_seed(0)
    model = Encoder().eval()
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    exported = torch.export.export(model, (torch.zeros(2, 5).long(),), dynamic_shapes=(free,))
    torch.export.save(exported, tmp_path / "m.pt2")
    options = ProfileOptions(blocks=3, max_batch=2, budget_s=0.05, shapes={"ids": (7,)})
    assert len(profile_model(tmp_path / "m.pt2", options).blocks) == 3
    ids = np.arange(14).reshape(2, 7) % 10
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(answers(tmp_path / "m.pt2", ids)[0], wanted, rtol=1e-5)


def test_an_export_for_one_item_is_served_one_request_per_run(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2).eval()
    exported = torch.export.export(model, (torch.zeros(1, 4),))
    torch.export.save(exported, tmp_path / "one.pt2")
    profile = profiled(tmp_path / "one.pt2")
    assert not profile.batched
    assert "exported for [1, 4]" in profile.provenance.notes[0]


def test_an_export_with_scalars_is_profiled_and_answers(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, rate: Any) -> Any:
            return x * rate, x.sum()

    exported = torch.export.export(Scaled().eval(), (torch.zeros(2, 4), torch.tensor(1.0)))
    torch.export.save(exported, tmp_path / "scaled.pt2")
    profile = profiled(tmp_path / "scaled.pt2")
    assert [spec.item_shape for spec in profile.inputs] == [(2, 4), ()]
    assert [spec.item_shape for spec in profile.outputs] == [(2, 4), ()]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    scaled, total = answers(tmp_path / "scaled.pt2", x, np.array(3, np.float32))
    np.testing.assert_array_equal(scaled, x * 3)
    assert (total.shape, total.item()) == ((), 28)


@pytest.mark.parametrize("where", ["in and out", "inside"])
def test_an_export_with_bfloat16_answers_bit_for_bit_as_pytorch_does(
    tmp_path: Path, where: str
) -> None:
    class Half(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8).to(torch.bfloat16)

        def forward(self, x: Any) -> Any:
            y = self.linear(x.to(torch.bfloat16)).relu()
            return y if where == "in and out" else y.float()

    torch.manual_seed(0)
    model, kind = Half().eval(), torch.bfloat16 if where == "in and out" else torch.float32
    x = torch.randn(2, 8).to(kind)
    path = export(model, x, tmp_path / "half.pt2")
    with torch.no_grad():
        wanted = model(x).float().numpy()

    profile = profiled(path)
    dtype = "bfloat16" if where == "in and out" else "float32"
    assert (profile.inputs[0].dtype, profile.outputs[0].dtype) == (dtype, dtype)
    given = x.float().numpy().astype(element_dtype(profile.inputs[0]))
    for (got,) in (answers(path, given), by_workers(profile, tmp_path, given)):
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(got.astype(np.float32), wanted)


def test_numbers_and_words_that_an_export_was_made_with_are_no_inputs(tmp_path: Path) -> None:
    class Chosen(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, times: int, rate: float, on: bool, how: str, mask: Any) -> Any:
            y = x * times * rate if on else x
            return torch.relu(y) if how == "relu" and mask is None else y

    given = (torch.zeros(2, 4), 3, 0.5, True, "relu", None)
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(Chosen(), given, dynamic_shapes=(batch, *[None] * 5))
    torch.export.save(exported, tmp_path / "chosen.pt2")
    profile = profiled(tmp_path / "chosen.pt2")
    assert [spec.name for spec in profile.inputs] == ["x"]
    x = np.array([[-2, 0, 2, 4]], np.float32)
    np.testing.assert_array_equal(answers(tmp_path / "chosen.pt2", x)[0], [[0, 0, 3, 6]])


def test_a_batch_beyond_what_was_exported_is_refused(small: Path) -> None:
    with pytest.raises(ModelError, match=r"exported for \[0\.\.64, 3, 64, 64\]"):
        answers(small, np.zeros((65, 3, 64, 64), np.float32))


def test_an_overwritten_tensor_that_is_read_again_is_refused(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            y = x * 2
            row = y[:, :2]
            row.add_(1)
            return y + 1

    exported = torch.export.export(Twice(), (torch.zeros(2, 4),))
    torch.export.save(exported, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="run_decompositions"):
        load_graph(tmp_path / "m.pt2")
    torch.export.save(exported.run_decompositions({}), tmp_path / "pure.pt2")
    x = np.ones((2, 4), np.float32)
    assert answers(tmp_path / "pure.pt2", x)[0].tolist() == [[4.0, 4.0, 3.0, 3.0]] * 2


@pytest.mark.parametrize(
    "view", ["moveaxis", "ravel", "reshape_as", "einsum", "unsafe_chunk", "two steps", "an input"]
)
def test_a_view_that_is_read_after_its_tensor_was_overwritten_is_refused(
    tmp_path: Path, view: str
) -> None:
    made = {
        "moveaxis": lambda y: torch.moveaxis(y, 1, 2),
        "ravel": torch.ravel,
        "reshape_as": lambda y: y.reshape_as(torch.zeros(2, 4, 3)),
        "einsum": lambda y: torch.einsum("bij->bji", y),
        "unsafe_chunk": lambda y: torch.unsafe_chunk(y, 3, 1)[1],
        "two steps": lambda y: torch.atleast_3d(torch.moveaxis(y, 1, 2))[:, 0],
    }

    class Overwrites(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            if view == "an input":
                torch.ravel(x).add_(1)
                return x * 2
            y = x * 2
            seen = made[view](y)
            y.mul_(3)
            return seen + 1

    exported = torch.export.export(Overwrites(), (torch.zeros(2, 3, 4),))
    torch.export.save(exported, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="overwrites a tensor that is used otherwise"):
        load_graph(tmp_path / "m.pt2")


def test_an_element_type_that_overwriting_would_keep_is_seen_where_gradients_are_off(
    tmp_path: Path,
) -> None:
    class Wraps(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.full((4,), 200))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                small = (x * 50).abs().to(torch.uint8).clone()
                small.add_(self.shift)
                return small.float() * 2

    torch.export.save(torch.export.export(Wraps(), (torch.ones(2, 4),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="overwrites"):
        load_graph(tmp_path / "m.pt2")


def test_a_comparison_in_place_keeps_zeros_and_ones_of_its_tensors_type(tmp_path: Path) -> None:
    class Counts(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            y = (x * 2).gt_(1)
            sure = (x > 0).logical_not_()
            return y + y, sure

    exported = torch.export.export(Counts(), (torch.zeros(2, 4),))
    torch.export.save(exported, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"gt_\.Scalar.*run_decompositions"):
        load_graph(tmp_path / "m.pt2")
    torch.export.save(exported.run_decompositions({}), tmp_path / "pure.pt2")
    twice, none = answers(tmp_path / "pure.pt2", np.ones((2, 4), np.float32))
    assert twice.tolist() == [[2.0] * 4] * 2
    assert not none.any()


def test_memory_that_an_export_leaves_as_it_is_holds_nothing_of_other_requests(
    tmp_path: Path,
) -> None:
    class Unfilled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            room = torch.empty(64, memory_format=torch.contiguous_format)
            return x + room, torch.empty_like(x), x.new_empty(64)

    exported = torch.export.export(Unfilled(), (torch.zeros(64),))
    torch.export.save(exported, tmp_path / "m.pt2")
    found = answers(tmp_path / "m.pt2", np.ones(64, np.float32))
    assert [answer.tolist() for answer in found] == [[1.0] * 64, [0.0] * 64, [0.0] * 64]


def test_activations_and_residuals_in_place_are_served(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True)),
        *(torch.nn.Dropout(0.5), torch.nn.Hardswish(inplace=True)),
    ).eval()

    class Residual(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            skipped = y.mean((2, 3), keepdim=True)
            y += skipped
            return y.flatten(1).sigmoid_()

    torch.manual_seed(0)
    network, x = Residual().eval(), torch.randn(2, 3, 6, 6)
    torch.export.save(torch.export.export(network, (x,)), tmp_path / "m.pt2")
    with torch.no_grad():
        wanted = network(x).numpy()
    np.testing.assert_allclose(answers(tmp_path / "m.pt2", x.numpy())[0], wanted, rtol=1e-5)


def test_state_that_a_model_keeps_is_refused_by_its_name(tmp_path: Path) -> None:
    class Counts(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            return x + self.seen

    exported = torch.export.export(Counts().eval(), (torch.zeros(2, 4),))
    torch.export.save(exported, tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="overwrites"):
        load_graph(tmp_path / "m.pt2")


def test_an_operator_that_this_pytorch_lacks_is_refused_by_its_name(tmp_path: Path) -> None:
    entries = chain_archive()
    nodes = entries["models/model.json"]["graph_module"]["graph"]["nodes"]
    nodes[-1]["target"] = "torch.ops.aten.no_such_operator.default"
    path = write_archive(tmp_path / "m.pt2", entries)
    with pytest.raises(ModelError, match=r"aten\.no_such_operator\.default"):
        answers(path, np.zeros((1, 64), np.float32))


def test_a_call_that_writes_to_an_argument_is_refused_as_its_operator_refuses_it(
    tmp_path: Path,
) -> None:
    """PyTorch's function would take it, and write to an input, or to weights in their file."""
    entries = chain_archive(layers=1)
    nodes = entries["models/model.json"]["graph_module"]["graph"]["nodes"]
    writes = [output["as_tensor"]["name"] for output in nodes[-1]["outputs"]]
    nodes[-1] = call("add.Tensor", ["linear_0", "x"], writes, out={"as_tensor": {"name": "x"}})
    path = write_archive(tmp_path / "m.pt2", entries)
    x = np.ones((2, 64), np.float32)
    with pytest.raises(Exception, match="out"):
        answers(path, x)
    assert np.array_equal(x, np.ones((2, 64), np.float32))


def test_shapes_are_computed_beside_the_device(small: Path) -> None:
    """A tensor of the meta device has no content: whatever would wait for it fails."""
    from headrace.executors.torch_program import TorchProgram

    graph = load_graph(small)
    specs = input_specs(graph, {"x": (3, 64, 64)})
    graph = batch_first(graph, specs, (), True)
    import onnx

    model = onnx.load_model_from_string(whole_model(graph))
    program = TorchProgram(model, graph.weights, "meta")
    found = program([torch.empty(2, 3, 64, 64, device="meta")])
    assert [tuple(tensor.shape) for tensor in found] == [(2, 4), (2, 4)]


def test_a_view_that_another_device_lays_out_otherwise_is_a_copy(tmp_path: Path) -> None:
    """Attention answers in another order of memory on GPUs, and an export has no call for that."""

    class Flat(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.view(x.shape[0], -1) * 2

    import onnx

    from headrace.executors.torch_program import TorchProgram

    x = torch.arange(24.0).reshape(2, 3, 4)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(Flat(), (x,), dynamic_shapes=({0: batch},))
    path = tmp_path / "flat.pt2"
    torch.export.save(exported, path)
    graph = load_graph(path)
    program = TorchProgram(onnx.load_model_from_string(whole_model(graph)), graph.weights, "cpu")
    elsewhere = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not elsewhere.is_contiguous()
    [found] = program([elsewhere])
    assert torch.equal(found, Flat()(x))


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def called_with() -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Operator -> arguments, as exports have them."""
    x, square, matrix, row = drawn(2, 3, 4), drawn(2, 4, 4), drawn(5, 4), drawn(4)
    image, kernel, channels = drawn(2, 4, 6, 6), drawn(8, 2, 3, 3), drawn(4).abs()
    masked = torch.ones(4, 4, dtype=torch.bool).tril()
    return {
        "aten.add.Tensor": [((x, row), {}), ((x, 2), {}), ((x, row), {"alpha": 3})],
        "aten.batch_norm.default": [
            ((image, channels, channels, channels, channels, False, 0.1, 1e-5, True), {}),
            ((image, None, None, channels, channels, False, 0.1, 1e-3, False), {}),
        ],
        "aten.conv2d.default": [
            ((image, kernel, None, (2, 2), (1, 1), (1, 1), 2), {}),
            ((image, drawn(8, 4, 1, 1), drawn(8)), {}),
        ],
        "aten.embedding.default": [
            ((matrix, torch.tensor([[0, 4], [2, 2]])), {}),
            ((matrix, torch.tensor([1]), 0), {}),
        ],
        "aten.gelu.default": [((x,), {}), ((x,), {"approximate": "tanh"})],
        "aten.layer_norm.default": [
            ((x, (4,), row, row, 1e-3), {}),
            ((x, (3, 4)), {}),
            ((x, (4,), row, row, 1e-5, False), {}),
        ],
        "aten.linear.default": [((x, matrix, drawn(5)), {}), ((x, matrix), {})],
        "aten.mul.Tensor": [((x, row), {}), ((x, 0.5), {})],
        "aten.permute.default": [((x, (2, 0, 1)), {}), ((x, [0, -1, 1]), {})],
        "aten.relu.default": [((x,), {})],
        "aten.reshape.default": [
            ((x, (2, 12)), {}),
            ((x, [-1]), {}),
            ((x.transpose(0, 1), (24,)), {}),
        ],
        "aten.scaled_dot_product_attention.default": [
            ((square, square, square), {}),
            ((square, square, square, masked, 0.0, False), {"scale": 0.3}),
            ((square, square, square, None, 0.0, True), {}),
        ],
        "aten.softmax.int": [((x, -1), {}), ((x, 1, torch.float64), {})],
        "aten.transpose.int": [((x, 1, 2), {}), ((x, -1, 0), {})],
    }


def test_functions_that_stand_for_operators_are_these_operators() -> None:
    from operator import attrgetter

    from headrace.executors.torch_program import _CALLED_MOST

    arguments = called_with()
    assert set(arguments) == set(_CALLED_MOST)
    for name, calls in arguments.items():
        operator = attrgetter(name)(torch.ops)
        function = attrgetter(_CALLED_MOST[name])(torch)
        for given, named in calls:
            wanted, found = operator(*given, **named), function(*given, **named)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
            assert torch.equal(found, wanted), name


def test_dropout_that_drops_nothing_calls_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export(torch.nn.Dropout(0.5).eval(), torch.ones(2, 4), tmp_path / "same.pt2")
    import onnx

    from headrace.executors.torch_program import TorchProgram

    monkeypatch.setattr(TorchProgram, "_aten", lambda self, node, *_: pytest.fail(node.op_type))
    graph = load_graph(path)
    program = TorchProgram(onnx.load_model_from_string(whole_model(graph)), graph.weights, "cpu")
    x = torch.full((3, 4), 7.0)
    [found] = program([x])
    assert found is x
