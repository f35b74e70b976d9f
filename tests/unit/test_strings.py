"""Strings (BYTES) and bfloat16 of models: as clients send them, as they lie in memory, computed."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.elements import element_dtype, fill_neutral, pack, unpack
from headrace.domain.errors import ModelError, ProfileError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import TensorMemory
from headrace.load.payload import (
    MessageEncoder,
    ModelInfo,
    RequestEncoder,
    TensorInfo,
    decode_model_info,
    file_input,
    random_inputs,
)
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.serving.engine.inference import Answer, Inference, ServedModel
from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.strings import from_json
from headrace.serving.front.v2 import GivenInput
from headrace.serving.workers.arena import Arena, map_arena
from headrace.serving.workers.frames import Failed, Finished, Load, Loaded, Run
from headrace.serving.workers.worker import Worker
from helpers.gateway import Bench, FakeEngine, Reply, get, post
from helpers.grpc_bench import GrpcBench, Told
from helpers.onnx_models import bfloat16_model, saved, words_model
from helpers.problems import make_profile

MOST = 16
TEXTS = [["weir", 'Mühle, "x\\'], ["", "a\0b"]]
WORDS = TensorSpec(name="words", dtype="bytes", item_shape=(2,), max_bytes=MOST)
AGAIN = TensorSpec(name="again", dtype="bytes", item_shape=(2,), max_bytes=MOST)


def served(axis: int = 0) -> ServedModel:
    def moved(spec: TensorSpec) -> TensorSpec:
        fields = {"name": spec.name, "dtype": "bytes", "item_shape": (2,), "max_bytes": MOST}
        return TensorSpec(batch_axis=axis, **fields)  # type: ignore[arg-type]

    return ServedModel(
        name="echo",
        inputs=(moved(WORDS),),
        outputs=(moved(AGAIN),),
        slo_us=100_000,
        fastest_us=1_000,
        max_items=8,
    )


class Echo(FakeEngine):
    """Answers with what it was given."""

    def answer_to(self, inference: Inference, *, ended_at_us: int = 5_000) -> Answer:
        outputs = tuple(memoryview(bytes(given)) for given in inference.inputs)
        return Answer(
            outputs=outputs, arrived_at_us=0, deadline_at_us=100_000, ended_at_us=ended_at_us
        )


def wire(*texts: str | bytes) -> bytes:
    plain = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in plain)


def flat(texts: list[list[str]] = TEXTS) -> list[str]:
    return [text for row in texts for text in row]


def ask_json(data: Any, shape: tuple[int, ...] = (2, 2), axis: int = 0) -> Reply:
    tensor = {"name": "words", "datatype": "BYTES", "shape": shape, "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    return Bench(Echo(served(axis))).ask(post("/v2/models/echo/infer", body))


def ask_binary(
    data: bytes, shape: tuple[int, ...] = (2, 2), *, binary_answer: bool = True
) -> Reply:
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "words", "datatype": "BYTES", "shape": shape, "parameters": parameters}
    asked = {"inputs": [tensor], "parameters": {"binary_data_output": binary_answer}}
    head = json.dumps(asked).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    return Bench(Echo(served())).ask(post("/v2/models/echo/infer", head + data, length))


def ask_grpc(texts: list[bytes], *, raw: bool, wired: bytes | None = None) -> Told:
    request = message("ModelInferRequest")(model_name="echo")
    tensor = request.inputs.add(name="words", datatype="BYTES", shape=[2, 2])
    if raw:
        request.raw_input_contents.append(wire(*texts) if wired is None else wired)
    else:
        tensor.contents.bytes_contents.extend(texts)
    return (
        GrpcBench(Echo(served())).connect().greet().call("ModelInfer", request.SerializeToString())
    )


# -- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [TEXTS, flat()], ids=["nested", "flat"])
def test_texts_in_json_come_back_as_they_were(data: Any) -> None:
    reply = ask_json(data)

    [output] = reply.json["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == flat()


@pytest.mark.parametrize("data", [b'["weir"]', b'"weir"'], ids=["listed", "bare"])
def test_a_text_without_dimensions_may_stand_bare(data: bytes) -> None:
    tensor = GivenInput(name="word", shape=[], datatype="BYTES")

    assert from_json(tensor, msgspec.Raw(data)) == [b"weir"]


def test_strings_in_binary_come_back_with_their_lengths_before_them() -> None:
    reply = ask_binary(wire(*flat()))

    [output] = reply.json["outputs"]
    assert output["parameters"] == {"binary_data_size": len(wire(*flat()))}
    assert reply.body.endswith(wire(*flat()))
    assert ask_binary(wire(*flat()), binary_answer=False).json["outputs"][0]["data"] == flat()


def test_answers_of_other_lengths_say_their_own_sizes() -> None:
    bench = Bench(Echo(served()))

    def size(*texts: str) -> int:
        tensor = {"name": "words", "datatype": "BYTES", "shape": [1, 2], "data": list(texts)}
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        reply = bench.ask(post("/v2/models/echo/infer", json.dumps(asked).encode()))
        return int(reply.json["outputs"][0]["parameters"]["binary_data_size"])

    assert (size("a", "b"), size("aaaa", "b"), size("", "")) == (10, 13, 8)


@pytest.mark.parametrize("raw", [True, False])
def test_strings_over_grpc_raw_and_typed(raw: bool) -> None:
    told = ask_grpc([text.encode() for text in flat()], raw=raw)

    [contents] = told.parsed("ModelInferResponse").raw_output_contents
    assert contents == wire(*flat())


def test_a_models_string_that_is_no_text_is_not_falsified_in_json() -> None:
    class Bytes(Echo):
        def answer_to(self, inference: Inference, *, ended_at_us: int = 5_000) -> Answer:
            rooms = np.zeros(2, element_dtype(AGAIN))
            pack([b"\xff\xfe", b"ok"], rooms)
            return Answer(
                outputs=(memoryview(rooms.tobytes()),),
                arrived_at_us=0,
                deadline_at_us=100_000,
                ended_at_us=ended_at_us,
            )

    def ask(*, binary: bool) -> Reply:
        tensor = {"name": "words", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]}
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
        bench = Bench(Bytes(served()))
        return bench.ask(post("/v2/models/echo/infer", json.dumps(asked).encode()))

    assert ask(binary=False).status == 422
    assert "'again' holds bytes that are not UTF-8" in ask(binary=False).error
    assert ask(binary=True).body.endswith(wire(b"\xff\xfe", b"ok"))


def test_strings_of_a_batch_that_is_not_first_are_turned_in_both_directions() -> None:
    engine = Echo(served(axis=1))
    data = [["a0", "b0", "c0"], ["a1", "b1", "c1"]]
    tensor = {"name": "words", "datatype": "BYTES", "shape": [2, 3], "data": data}

    reply = Bench(engine).ask(
        post("/v2/models/echo/infer", json.dumps({"inputs": [tensor]}).encode())
    )

    rooms = np.frombuffer(engine.submitted[0].inputs[0], element_dtype(WORDS))
    assert unpack(rooms) == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]
    assert reply.json["outputs"][0]["data"] == flat(data)


BAD_BINARY = {
    "a length beyond the data": (
        wire("a", "b", "c") + b"\xff\xff\xff\xffd",
        "string 3 (from 0) is",
    ),
    "half a length": (wire("a", "b", "c") + b"\x01\0", "string 3 (from 0) is cut off"),
    "too few": (wire("a", "b", "c"), "shape [2, 2] needs 4 strings, got 3"),
    "too many": (wire("a", "b", "c", "d", "e"), "needs 4 strings, got more"),
    "too long": (
        wire("a", "b", "c", "d" * 17),
        "string 3 (from 0) has 17 bytes, the model takes 16",
    ),
    "not UTF-8": (wire("a", b"\xff\xfe", "c", "d"), "string 1 (from 0) is not UTF-8"),
}


@pytest.mark.parametrize(("data", "said"), BAD_BINARY.values(), ids=BAD_BINARY)
def test_strings_that_are_not_as_the_model_takes_them_are_refused_in_a_sentence(
    data: bytes, said: str
) -> None:
    reply = ask_binary(data)
    told = ask_grpc([], raw=True, wired=data)

    assert (reply.status, told.status) == (400, status.INVALID_ARGUMENT)
    assert said in reply.error
    assert said in told.sentence


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (["a", "b", "c"], "needs 4 strings, got 3"),
        (["a", "b", "c", 4], "'words': `data`: Expected `str`, got `int` - at `$[3]`"),
        ([["a", "b"], [None, "d"]], "'words': `data`: Expected `str`, got `null` - at `$[1][0]`"),
        (["a", '\\"\ud800', "c", "d"], "'words': string 1 (from 0) has half a character"),
        (["a", "b", "\udbff", "\udc00"], "'words': string 2 (from 0) has half a character"),
        ([["a", "b", "c"], ["d"]], "nested otherwise than shape [2, 2]"),
        ([[["a", "b"], ["c", "d"]]], "must be a flat list, or nested as its shape is"),
        (["a", "b", "c", "ü" * 9], "has 18 bytes"),
        ({"a": "b", "c": "d"}, "must be a flat list"),
        (["a"] * 100_000, "needs 4 strings, got more"),
    ],
)
def test_texts_in_json_that_are_not_as_the_shape_says_are_refused(data: Any, said: str) -> None:
    reply = ask_json(data)

    assert reply.status == 400
    assert said in reply.error


def test_metadata_and_configuration_name_the_type() -> None:
    bench = Bench(Echo(served()))

    assert bench.ask(get("/v2/models/echo")).json["inputs"] == [
        {"name": "words", "datatype": "BYTES", "shape": [-1, 2]}
    ]
    assert bench.ask(get("/v2/models/echo/config")).json["input"][0]["data_type"] == "TYPE_STRING"


def test_the_load_generator_sends_texts(tmp_path: Path) -> None:
    bench = Bench(Echo(served()))
    info = decode_model_info(bench.ask(get("/v2/models/echo")).body)
    np.save(tmp_path / "x.npy", np.array(TEXTS))
    made_up = [np.array([["made", "up"]], dtype=object)]
    assert random_inputs(info, 3, np.random.default_rng(0))[0].shape == (3, 2)
    for tensors in (file_input(tmp_path / "x.npy", info, 1), made_up):
        for binary in (True, False):
            encoder = RequestEncoder(b"Host: localhost\r\n", info, tensors, binary=binary)
            assert bench.ask(b"".join(encoder.parts(None, 0))).status == 200


# -- memory ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=MOST), min_size=1, max_size=6))
def test_what_is_packed_is_unpacked(texts: list[bytes]) -> None:
    rooms = np.zeros(len(texts), element_dtype(WORDS))
    pack([b"x" * MOST] * len(texts), rooms)
    pack(texts, rooms)
    assert unpack(rooms) == texts


def test_a_length_that_leaves_its_room_is_not_followed() -> None:
    rooms = np.zeros(2, element_dtype(WORDS))
    rooms["length"] = MOST + 1
    with pytest.raises(ValueError, match="17 bytes in a room of 16"):
        unpack(rooms)


def test_a_profile_bounds_its_strings_and_nothing_else() -> None:
    profile = make_profile("m")
    for spec in (
        TensorSpec(name="x", dtype="bytes", item_shape=()),
        TensorSpec(name="x", dtype="bytes", item_shape=(), max_bytes=1 << 21),
        TensorSpec(name="x", dtype="float32", item_shape=(), max_bytes=4),
    ):
        with pytest.raises(ProfileError, match="max_bytes"):
            type(profile)(**{**_fields(profile), "inputs": (spec,)})


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


# -- executor -------------------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1 << 16)
    yield arena
    arena.close()


def loaded(
    arena: Arena, path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> tuple[Worker, TensorMemory]:
    memory = TensorMemory(map_arena(arena.descriptor, arena.size_bytes))
    worker = Worker(memory)
    load = Load(
        stage=0,
        name="m/p/0",
        executor="onnx",
        path=str(path),
        inputs=inputs,
        outputs=outputs,
        max_batch=4,
        p50_us=(1_000,) * 4,
        p99_us=(1_000,) * 4,
        seed=1,
    )
    answer = worker.answer(load)
    assert isinstance(answer, Loaded), answer
    return worker, memory


CODES = TensorSpec(name="codes", dtype="int64", item_shape=(2,))


def test_a_model_with_strings_runs_from_room_to_room(tmp_path: Path, arena: Arena) -> None:
    path = saved(words_model(), tmp_path / "words.onnx")
    worker, memory = loaded(arena, path, (WORDS,), (CODES, AGAIN))
    pack([text.encode() for text in flat()], memory.tensor(WORDS, 2, 0))

    for _ in range(2):
        assert isinstance(worker.answer(Run(1, 0, 0, 2, (0,), (1024, 2048))), Finished)

    assert memory.tensor(CODES, 2, 1024).tolist() == [[2, 0], [0, 0]]
    again = [TEXTS[0][1], TEXTS[0][0], TEXTS[1][1], TEXTS[1][0]]
    assert unpack(memory.tensor(AGAIN, 2, 2048)) == [text.encode() for text in again]


def test_an_answer_that_is_longer_than_its_room_fails_alone(tmp_path: Path, arena: Arena) -> None:
    path = saved(words_model(), tmp_path / "words.onnx")
    short = TensorSpec(name="again", dtype="bytes", item_shape=(2,), max_bytes=4)
    worker, memory = loaded(arena, path, (WORDS,), (CODES, short))
    pack([b"wheels", b"weir"], memory.tensor(WORDS, 1, 0))

    failed = worker.answer(Run(1, 0, 0, 1, (0,), (1024, 2048)))

    assert isinstance(failed, Failed)
    assert not failed.broken
    assert "output 'again': a string of 6 bytes; there is room for 4" in failed.message
    assert unpack(memory.tensor(WORDS, 1, 0)) == [b"wheels", b"weir"], "its input is as it was"


def test_bfloat16_is_computed_where_it_lies(tmp_path: Path, arena: Arena) -> None:
    x, y = (TensorSpec(name=name, dtype="bfloat16", item_shape=(3,)) for name in "xy")
    worker, memory = loaded(arena, saved(bfloat16_model(), tmp_path / "m.onnx"), (x,), (y,))
    memory.tensor(x, 2, 0)[...] = np.array([[1, 2, 3], [-0.5, 1e30, 7]])

    assert isinstance(worker.answer(Run(1, 0, 0, 2, (0,), (64,))), Finished)

    doubled = np.array([[2, 4, 6], [-1, 2e30, 14]]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(memory.tensor(y, 2, 64), doubled)


def test_a_model_that_refuses_zeros_is_loaded_and_a_wrong_input_is_not_its_end(
    tmp_path: Path, arena: Arena
) -> None:
    """`y` = the `number`-th of two values, counted from the end: 0 is out of range."""
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["number", "three"], ["index"]),
            helper.make_node("Gather", ["values", "index"], ["y"]),
        ],
        "from_one",
        [helper.make_tensor_value_info("number", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
        [
            numpy_helper.from_array(np.array(3), "three"),
            numpy_helper.from_array(np.array([5, 6], np.float32), "values"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    number = TensorSpec(name="number", dtype="int64", item_shape=())
    y = TensorSpec(name="y", dtype="float32", item_shape=())
    worker, memory = loaded(arena, saved(model, tmp_path / "m.onnx"), (number,), (y,))

    memory.tensor(number, 1, 0)[...] = 9
    failed = worker.answer(Run(1, 0, 0, 1, (0,), (128,)))
    memory.tensor(number, 1, 0)[...] = 1

    assert isinstance(failed, Failed)
    assert not failed.broken
    assert isinstance(worker.answer(Run(2, 0, 0, 1, (0,), (128,))), Finished)
    assert memory.tensor(y, 1, 128).tolist() == [5]


def test_a_neutral_tensor_is_zero_or_short_texts() -> None:
    rooms = np.zeros((2, 2), element_dtype(WORDS))
    fill_neutral(rooms)
    assert unpack(rooms) == [b"0"] * 4


# -- profiling ------------------------------------------------------------------------------------


def quick(**changes: Any) -> ProfileOptions:
    return ProfileOptions(use_cache=False, budget_s=0.05, max_batch=2, **changes)


def test_a_model_with_strings_is_profiled_with_made_up_or_real_texts(tmp_path: Path) -> None:
    path = saved(words_model(), tmp_path / "words.onnx")
    np.save(tmp_path / "x.npy", np.array(TEXTS))

    plain = profile_model(path, quick())
    real = profile_model(path, quick(max_string_bytes=32, examples={"": tmp_path / "x.npy"}))

    assert [(t.dtype, t.item_shape, t.max_bytes) for t in plain.inputs] == [("bytes", (2,), 4096)]
    assert [(t.name, t.dtype, t.max_bytes) for t in real.outputs] == [
        ("codes", "int64", 0),
        ("again", "bytes", 32),
    ]
    assert real.blocks[-1].cut_bytes == 2 * 8 + 2 * (4 + 32)


def test_example_texts_beyond_the_bound_are_refused_with_what_they_need(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(TEXTS))
    path = saved(words_model(), tmp_path / "words.onnx")
    with pytest.raises(ModelError, match="--max-string-bytes 11"):
        profile_model(path, quick(max_string_bytes=4, examples={"": tmp_path / "x.npy"}))


def test_a_bfloat16_model_is_profiled(tmp_path: Path) -> None:
    profile = profile_model(saved(bfloat16_model(), tmp_path / "m.onnx"), quick())

    assert (profile.inputs[0].dtype, profile.outputs[0].dtype) == ("bfloat16", "bfloat16")
    assert profile.blocks[-1].cut_bytes == 3 * 2


def test_bfloat16_is_sent_in_json_as_numbers_and_in_binary_as_bits() -> None:
    spec = TensorSpec(name="x", dtype="bfloat16", item_shape=(3,))
    model = ServedModel(
        name="echo", inputs=(spec,), outputs=(spec,), slo_us=100_000, fastest_us=1, max_items=4
    )
    tensor: dict[str, Any] = {"name": "x", "datatype": "BF16", "shape": [1, 3]}
    url = "/v2/models/echo/infer"

    text = json.dumps({"inputs": [{**tensor, "data": [1, -2.5, 1e30]}]}).encode()
    values = Bench(Echo(model)).ask(post(url, text)).json["outputs"][0]["data"]

    bits = np.array([1, -2.5, 1e30], ml_dtypes.bfloat16)
    assert values == bits.astype(np.float32).tolist()
    tensor["parameters"] = {"binary_data_size": 6}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    assert (
        Bench(Echo(model))
        .ask(post(url, head + bits.tobytes(), length))
        .body.endswith(bits.tobytes())
    )
    too_large = json.dumps({"inputs": [{**tensor, "parameters": {}, "data": [1e39, 0, 0]}]})
    assert "does not fit into BF16" in Bench(Echo(model)).ask(post(url, too_large.encode())).error


@pytest.mark.parametrize("narrowed", [True, False])
def test_the_load_generator_sends_bfloat16(tmp_path: Path, narrowed: bool) -> None:
    """From a file of float32, which are rounded, or of the bits that numpy does not know."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.standard_normal(1000), [1 + 2**-8, 1 + 3 * 2**-8, 3e38, -0.0, np.nan]])
    bits = x.astype(np.float32).astype(ml_dtypes.bfloat16).reshape(1, -1)
    np.save(tmp_path / "x.npy", bits if narrowed else x.astype(np.float32).reshape(1, -1))
    tensor = TensorInfo(name="x", datatype="BF16", shape=(-1, x.size))
    info = ModelInfo(name="m", inputs=(tensor,))

    tensors = file_input(tmp_path / "x.npy", info, 1)

    parts = RequestEncoder(b"", info, tensors, binary=True).parts(None, 0)
    assert b"".join(parts).endswith(bits.tobytes())
    parts = MessageEncoder(b"", info, tensors).parts(None, 0)
    assert bits.tobytes() in b"".join(parts)
    assert random_inputs(info, 3, rng)[0].shape == (3, x.size)
