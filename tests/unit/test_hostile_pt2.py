"""Archives of PyTorch that nobody's `torch.export.save` wrote: refused, and nothing of them run."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.domain.errors import ModelError
from helpers.pt2_archives import WritesFile, call, chain_archive, saved_pickle, write_archive

Entries = dict[str, Any]
WEIGHTS = "data/weights/model_weights_config.json"


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_graph(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_archive_is_read_without_pytorch_and_its_weights_stay_in_it(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "chain.pt2", chain_archive())
    graph = load_graph(path)
    assert (graph.format, graph.outputs) == ("torch", ("y2",))
    assert graph.weights is not None
    assert graph.weights.names == ("chain.pt2",)
    assert [cut.tensors for cut in find_cuts(graph)][1:] == [
        ("linear_0",), ("y0",), ("linear_1",), ("y1",), ("linear_2",)
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["sample inputs", "weights", "constants"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, place: str) -> None:
    entries, witness = chain_archive(), tmp_path / "witness"
    payload = saved_pickle(WritesFile(witness))
    if place == "sample inputs":
        entries["data/sample_inputs/model.pt"] = payload
    elif place == "weights":
        entries["data/weights/weight_0"] = payload
        entries[WEIGHTS]["config"]["w0"]["use_pickle"] = True
    else:
        entries["data/constants/custom_obj_0"] = payload
        entries["data/constants/model_constants_config.json"]["config"]["object"] = {
            "path_name": "custom_obj_0",
            "use_pickle": True,
            "tensor_meta": None,
        }
    message = refusal(write_archive(tmp_path / "hostile.pt2", entries))
    assert "pickle" in message
    assert not witness.exists()


def test_the_sample_inputs_of_an_honest_export_are_no_code(tmp_path: Path) -> None:
    entries = chain_archive()
    entries["data/sample_inputs/model.pt"] = saved_pickle(((), {}))
    assert load_graph(write_archive(tmp_path / "honest.pt2", entries)).format == "torch"


def test_the_parts_of_a_tensor_without_a_storage_of_its_type_are_no_code(tmp_path: Path) -> None:
    """As torch.save writes an example of uint16."""
    entries = chain_archive()
    names = (
        b"torch._utils\n_rebuild_tensor_v3",
        b"torch.storage\nUntypedStorage",
        b"torch\nuint16",
    )
    pickled = b"\x80\x02" + b"".join(b"c" + name + b"\n" for name in names) + b"."
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    entries["data/sample_inputs/model.pt"] = memory.getvalue()
    assert load_graph(write_archive(tmp_path / "honest.pt2", entries)).format == "torch"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (10, "weights 'w0' of complex64, which is not served; keep real and imaginary parts"),
        (28, "weights 'w0' of uint16, which is not served; use int32"),
        (30, "weights 'w0' of float8_e5m2, which is not served; use float16"),
        (34, "weights 'w0' of uint32, which is not served; use int64"),
        (99, "weights 'w0' of element type 99, which is not served"),
    ],
)
def test_element_types_that_are_not_served_are_named(
    tmp_path: Path, number: int, said: str
) -> None:
    entries = chain_archive()
    entries[WEIGHTS]["config"]["w0"]["tensor_meta"]["dtype"] = number
    assert said in refusal(write_archive(tmp_path / "m.pt2", entries))


def test_training_is_named_before_what_it_overwrites(tmp_path: Path) -> None:
    entries = chain_archive()
    nodes = entries["models/model.json"]["graph_module"]["graph"]["nodes"]
    trained = {"name": "training", "arg": {"as_bool": True}, "kind": 1}
    counted = call("add_.Tensor", ["p_w0", "p_w0"], ["count"])
    normed = call("batch_norm.default", ["x"], ["normed"])
    normed["inputs"].append(trained)
    nodes[:0] = [counted, normed]
    assert "model.eval() before" in refusal(write_archive(tmp_path / "m.pt2", entries))


def test_compiled_code_is_refused(tmp_path: Path) -> None:
    entries = chain_archive() | {"data/aotinductor/model/x.so": b"\x7fELF"}
    assert "compiled code" in refusal(write_archive(tmp_path / "m.pt2", entries))


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "m.pt2", chain_archive())
    content = path.read_bytes()
    for kept in (4, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:kept])
        assert "export" in refusal(path)


def test_weights_shorter_than_their_shape_are_refused(tmp_path: Path) -> None:
    entries = chain_archive()
    entries["data/weights/weight_1"] = entries["data/weights/weight_1"][:-4]
    message = refusal(write_archive(tmp_path / "m.pt2", entries))
    assert "'w1' need 16,384 bytes, but 16,380 are in it" in message


def test_an_entry_that_reaches_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "m.pt2", chain_archive())
    content = bytearray(path.read_bytes())
    # The last entry's length in the directory, both compressed and not.
    at = content.rindex(b"PK\x01\x02")
    content[at + 20 : at + 28] = (10**9).to_bytes(4, "little") * 2
    path.write_bytes(content)
    assert "truncated or damaged" in refusal(path)


def test_an_archive_that_lost_bytes_inside_is_refused(tmp_path: Path) -> None:
    """So that its directory says that entries begin before the file does."""
    path = write_archive(tmp_path / "m.pt2", chain_archive())
    content = path.read_bytes()
    path.write_bytes(content[:100] + content[102:])
    assert "m.pt2: 'model/" in (said := refusal(path))
    assert "truncated or damaged" in said


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "m.pt2", chain_archive(), zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(path)


def _nodes(entries: Entries) -> list[Any]:
    nodes: list[Any] = entries["models/model.json"]["graph_module"]["graph"]["nodes"]
    return nodes


def _sizes(entries: Entries, value: int) -> None:
    graph = entries["models/model.json"]["graph_module"]["graph"]
    graph["tensor_values"]["x"]["sizes"][1]["as_int"] = value


def _weight_size(entries: Entries, value: int) -> None:
    entries[WEIGHTS]["config"]["w0"]["tensor_meta"]["sizes"][0]["as_int"] = value


def _last(entries: Entries, node: dict[str, Any]) -> None:
    _nodes(entries)[-1] = node


def _without_gradients(entries: Entries, given: dict[str, Any]) -> None:
    """A subgraph in which gradients are switched off, as the last node."""
    graph = entries["models/model.json"]["graph_module"]["graph"] | {"nodes": []}
    arguments = ({"as_bool": False}, {"as_graph": {"graph": graph}}, given)
    inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
    target = "torch.ops.higher_order.wrap_with_set_grad_enabled"
    _last(entries, call("tanh.default", [], ["y2"]) | {"target": target, "inputs": inputs})


def _a_million_nodes(entries: Entries) -> None:
    node = '{"target":"t","inputs":[],"outputs":[]},'
    model = json.dumps(entries["models/model.json"])
    entries["models/model.json"] = model.replace('"nodes": [', '"nodes": [' + node * 10**6).encode()


HOSTILE: dict[str, tuple[Callable[[Entries], object], str]] = {
    "a file's name": (
        lambda e: _last(e, call("from_file.default", [], ["y2"], filename={"as_string": "/etc"})),
        "from_file",
    ),
    "a function that is no operator": (
        lambda e: _last(e, call("tanh.default", ["linear_2"], ["y2"]) | {"target": "torch.load"}),
        "torch.load",
    ),
    "a way out of the operators": (
        lambda e: _last(e, call("__class__.__subclasses__", [], ["y2"])),
        "__class__",
    ),
    "text as an argument": (
        lambda e: _last(e, call("tanh.default", ["linear_2"], ["y2"], name={"as_string": "x"})),
        "text as argument",
    ),
    "random numbers": (
        lambda e: _last(e, call("rand_like.default", ["linear_2"], ["y2"])),
        "random",
    ),
    "a layer in training": (
        lambda e: _last(e, call("dropout.default", ["linear_2"], ["y2"], train={"as_bool": True})),
        "model.eval()",
    ),
    "an overwritten input": (
        lambda e: _last(e, call("tanh_.default", ["x"], ["y2"])),
        "overwrites",
    ),
    "a value that nothing makes": (
        lambda e: _last(e, call("tanh.default", ["nowhere"], ["y2"])),
        "before anything makes it",
    ),
    "a subgraph of a number": (
        lambda e: _without_gradients(e, {"as_int": 1}),
        "contradicts itself",
    ),
    "a size of 2^62": (lambda e: _sizes(e, 2**62), "a size of"),
    "a negative size": (lambda e: _sizes(e, -1), "a size of"),
    "weights of 2^62": (lambda e: _weight_size(e, 2**62), "a size of"),
    "weights of 2^31": (lambda e: _weight_size(e, 2**31 - 1), "'w0' need"),
    "another version": (
        lambda e: e["models/model.json"].update(schema_version={"major": 99}),
        "version 99",
    ),
    "weights elsewhere": (
        lambda e: e[WEIGHTS]["config"]["w0"].update(path_name="../../../etc/passwd"),
        "not in it",
    ),
    "JSON that is none": (lambda e: e.update({"models/model.json": b"{"}), "is not as"),
    "JSON without end": (
        lambda e: e.update({"models/model.json": b'{"graph_module":' + b"[" * 100_000}),
        "is not as",
    ),
    "two graphs": (lambda e: e.update({"models/other.json": b"{}"}), "2 exported graphs"),
    "a graph with 10^6 nodes": (_a_million_nodes, "has 1,000,006 operators"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_in_one_sentence(tmp_path: Path, what: str) -> None:
    entries = chain_archive()
    change, said = HOSTILE[what]
    change(entries)
    assert said in refusal(write_archive(tmp_path / "hostile.pt2", entries))


def test_a_file_of_torch_save_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(saved_pickle(WritesFile(tmp_path / "witness")))
    assert "torch.export.save" in refusal(path)
    assert not (tmp_path / "witness").exists()
