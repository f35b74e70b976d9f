"""What clients may send of a model of several sizes, and which bucket gets it."""

from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.domain.request import DropReason
from headrace.domain.tensors import OTHERWISE, TensorSpec
from headrace.serving.core.by_shape import whole_models
from headrace.serving.core.shaped_signature import ShapedSignature, signature_for
from headrace.serving.core.signature import CheckedInputs, InvalidError, TensorLayout
from headrace.serving.engine.inference import Answer, Buffer, Inference, Refusal, ServedModel
from headrace.serving.engine.pending import PendingRequests

IDS = TensorSpec(name="ids", dtype="int64", item_shape=(16,), dims=("tokens",))
MASK = TensorSpec(name="mask", dtype="int64", item_shape=(16,), dims=("tokens",))
STATES = TensorSpec(name="states", dtype="float32", item_shape=(16, 2), dims=("tokens", ""))
POOLED = TensorSpec(name="pooled", dtype="float32", item_shape=(3,))


def bucket(size: int) -> ServedModel:
    at = {"tokens": size}
    return ServedModel(
        name=f"text.{size}",
        inputs=(IDS.at(at), MASK.at(at)),
        outputs=(STATES.at(at), POOLED),
        slo_us=1000,
        fastest_us=size,
        max_items=8,
        planned_rps=10.0,
        dimensions=("tokens",),
        sizes=(size,),
        bucket_of="text",
    )


def shaped(*pad: str) -> ShapedSignature:
    signature = signature_for(whole_models([bucket(16), bucket(64)], pad)["text"])
    assert isinstance(signature, ShapedSignature)
    return signature


@dataclass
class Given:
    name: str
    array: NDArray[Any]
    datatype: str = "INT64"
    shape: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = list(self.array.shape)


def read(tensor: Given, layout: TensorLayout, items: int) -> Buffer:
    assert tensor.array.size == items * layout.item_count
    return tensor.array


def asked(signature: ShapedSignature, tokens: int, items: int = 1) -> CheckedInputs:
    array = np.arange(1, items * tokens + 1).reshape(items, tokens)
    return signature.check([Given("mask", array + 100), Given("ids", array)], read)


def test_the_smallest_bucket_that_covers_a_text_answers_it() -> None:
    signature = shaped()
    found = [asked(signature, tokens) for tokens in (1, 16, 17, 64)]
    assert [each.model for each in found] == ["text.16", "text.16", "text.64", "text.64"]
    assert [each.alone for each in found] == [(1,), (), (17,), ()]
    assert [each.outputs[0].shape(2) for each in found] == [[2, n, 2] for n in (1, 16, 17, 64)]


@pytest.mark.parametrize("tokens", [0, 65, 1 << 62])
def test_a_text_beyond_the_profiled_range_is_told_the_range(tokens: int) -> None:
    signature = shaped()
    given = [Given(name, np.zeros((1, 1), np.int64)) for name in ("ids", "mask")]
    for tensor in given:
        tensor.shape = [1, tokens]
    with pytest.raises(InvalidError, match=r"'tokens' must lie in 1\.\.64, the range .* got"):
        signature.check(given, read)


def test_inputs_of_one_inference_agree_on_their_sizes() -> None:
    arrays = (np.zeros((1, 4), np.int64), np.zeros((1, 5), np.int64))
    given = [Given("ids", arrays[0]), Given("mask", arrays[1])]
    with pytest.raises(InvalidError, match=r"differ in 'tokens': \[4, 5\]"):
        shaped().check(given, read)
    with pytest.raises(InvalidError, match="number of items: 1, 2"):
        shaped().check([given[0], Given("mask", np.zeros((2, 4), np.int64))], read)


def test_padding_fills_up_with_zeros_and_cuts_the_answer_back() -> None:
    found = asked(shaped("text"), tokens=3, items=2)
    ids = np.asarray(found.buffers[0])
    assert found.alone == ()
    assert ids.shape == (2, 16)
    assert ids[:, :3].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not ids[:, 3:].any()
    computed = np.arange(2 * 16 * 2, dtype=np.float32).reshape(2, 16, 2)
    sent = found.outputs[0].as_sent(computed.reshape(-1).view(np.uint8).data, 2)
    assert np.frombuffer(sent, np.float32).reshape(2, 3, 2).tolist() == computed[:, :3].tolist()
    assert len(sent) == 2 * found.outputs[0].item_bytes
    pooled = np.zeros((2, 3), np.float32)
    assert len(found.outputs[1].as_sent(pooled.view(np.uint8).reshape(-1).data, 2)) == 24


def test_sizes_between_need_a_model_that_is_known_there() -> None:
    halved = TensorSpec(name="half", dtype="float32", item_shape=(8,), dims=(OTHERWISE,))
    served = [replace(bucket(n), inner=(halved,)) for n in (16, 64)]
    signature = signature_for(whole_models(served, ())["text"])
    assert isinstance(signature, ShapedSignature)
    assert asked(signature, 16).model == "text.16"
    with pytest.raises(InvalidError, match="of 16, 64 only, got 17; `headrace serve --pad`"):
        asked(signature, 17)
    padded = signature_for(whole_models(served, ("text",))["text"])
    assert isinstance(padded, ShapedSignature)
    assert asked(padded, 17).model == "text.64"


def test_clients_see_one_model_with_all_that_its_buckets_are_planned_for() -> None:
    other = ServedModel(
        name="other", inputs=(POOLED,), outputs=(POOLED,), slo_us=1, fastest_us=1, max_items=1
    )
    models = whole_models([other, bucket(16), bucket(64)], ())
    assert list(models) == ["other", "text"]
    assert models["other"] is not models["text"]
    assert models["text"].planned_rps == 20.0
    assert models["text"].fastest_us == 16
    assert [each.name for each in models["text"].buckets] == ["text.16", "text.64"]


@pytest.mark.parametrize("reason", get_args(DropReason))
def test_a_refusal_names_the_model_that_was_asked_for_and_its_size_as_a_size(
    reason: DropReason,
) -> None:
    told: list[Answer | Refusal] = []
    pending = PendingRequests(lambda: 0, lambda callback: None)
    ids = np.zeros(16, np.int64).view(np.uint8)
    inference = Inference(
        model="text.16", items=1, inputs=(ids.data, ids.data), on_done=told.append
    )
    pending.refuse(pending.open(inference, 0, bucket(16))[0], reason, 20_000)
    pending.flush()
    [refusal] = told
    assert isinstance(refusal, Refusal)
    assert "text.16" not in refusal.message
    unnamed = reason in ("draining", "cancelled")
    assert ("model 'text' (size 16)" in refusal.message) == (not unnamed)


def test_what_never_can_be_answered_is_said_of_the_model_that_was_asked_for() -> None:
    assert bucket(16).refuse_timeout(1).message.startswith("model 'text' (size 16) needs at least")
    assert bucket(16).refuse_items(9, 1).message.startswith("model 'text' (size 16) cannot answer")
