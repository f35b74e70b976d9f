"""The eight networks of DeepPlan's study, layer by layer, from their public architectures.

ResNet-50 and -101 (He et al., CVPR 2016; 224 x 224 images), BERT (Devlin et al.), RoBERTa (Liu et
al.) at 384 tokens, GPT-2 and GPT-2 Medium (Radford et al.) at 1,024; float32, without heads of
language models. A layer is what has weights, or what runs between: attention (scores, softmax and
mixing), activations and sums. Counts of bytes and operations follow from shapes alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One layer, for one item."""

    name: str
    kind: str
    weights_bytes: int = 0
    tensors: int = 0
    """Arrays its weights are; each is a copy where the layer is copied alone."""
    operations: float = 0
    """Multiplications and additions of its matrix products."""
    moved_bytes: float = 0
    """Of activations read and written in device memory."""
    rows: int = 0
    """Of its output matrix: each row, or tile of rows, reads the weights again."""
    kernel: int = 0
    """Of a convolution: its width and height."""
    gathered_bytes: int = 0
    """Of an embedding: what one item reads of its table."""


def _matrix(name: str, rows: int, wide: int, high: int) -> Shape:
    return Shape(
        name=name,
        kind="Linear",
        weights_bytes=FLOAT * (wide + 1) * high,
        tensors=2,
        operations=2.0 * rows * wide * high,
        moved_bytes=FLOAT * rows * (wide + high),
        rows=rows,
    )


def _norm(name: str, rows: int, wide: int) -> Shape:
    return Shape(
        name=name,
        kind="LayerNorm",
        weights_bytes=2 * FLOAT * wide,
        tensors=2,
        moved_bytes=3 * FLOAT * rows * wide,
        rows=rows,
    )


def _table(name: str, rows: int, entries: int, wide: int) -> Shape:
    size = FLOAT * entries * wide
    return Shape(
        name=name,
        kind="Embedding",
        weights_bytes=size,
        tensors=1,
        rows=rows,
        moved_bytes=2 * FLOAT * rows * wide,
        gathered_bytes=min(FLOAT * rows * wide, size),
    )


def _attention(name: str, rows: int, wide: int, heads: int, passes: int) -> Shape:
    """`passes`: over the matrices of scores, to scale, mask, take the softmax and drop."""
    return Shape(
        name=name,
        kind="Attention",
        operations=4.0 * rows * rows * wide,
        moved_bytes=FLOAT * (passes * heads * rows * rows + 8 * rows * wide),
        rows=rows,
    )


def _elementwise(name: str, rows: int, wide: int, passes: int) -> Shape:
    return Shape(name=name, kind="Elementwise", moved_bytes=FLOAT * passes * rows * wide, rows=rows)


def _encoder(
    rows: int, layers: int, wide: int, heads: int, words: int, places: int, kinds: int
) -> Iterator[Shape]:
    yield _table("embeddings.word", rows, words, wide)
    yield _table("embeddings.position", rows, places, wide)
    yield _table("embeddings.type", rows, kinds, wide)
    yield _norm("embeddings.norm", rows, wide)
    for i in range(layers):
        at = f"layer{i}."
        for part in ("query", "key", "value"):
            yield _matrix(f"{at}{part}", rows, wide, wide)
        yield _attention(f"{at}attention", rows, wide, heads, passes=8)
        yield _matrix(f"{at}output", rows, wide, wide)
        yield _norm(f"{at}norm", rows, wide)
        yield _matrix(f"{at}wide", rows, wide, 4 * wide)
        yield _elementwise(f"{at}gelu", rows, 4 * wide, passes=2)
        yield _matrix(f"{at}narrow", rows, 4 * wide, wide)
        yield _norm(f"{at}final_norm", rows, wide)
    yield _matrix("pooler", 1, wide, wide)


def _decoder(rows: int, layers: int, wide: int, heads: int) -> Iterator[Shape]:
    yield _table("tokens", rows, 50_257, wide)
    yield _table("places", rows, 1_024, wide)
    for i in range(layers):
        at = f"layer{i}."
        yield _norm(f"{at}norm1", rows, wide)
        yield _matrix(f"{at}query_key_value", rows, wide, 3 * wide)
        yield _attention(f"{at}attention", rows, wide, heads, passes=16)
        yield _matrix(f"{at}output", rows, wide, wide)
        yield _norm(f"{at}norm2", rows, wide)
        yield _matrix(f"{at}wide", rows, wide, 4 * wide)
        # gelu as GPT-2 has it is eight operations one after the other.
        yield _elementwise(f"{at}gelu", rows, 4 * wide, passes=18)
        yield _matrix(f"{at}narrow", rows, 4 * wide, wide)
    yield _norm("final_norm", rows, wide)


def _convolution(name: str, side: int, into: int, out: int, kernel: int) -> Shape:
    rows, size = side * side, into * out * kernel * kernel
    return Shape(
        name=name,
        kind="Conv2d",
        weights_bytes=FLOAT * size,
        tensors=1,
        rows=rows,
        kernel=kernel,
        operations=2.0 * rows * size,
        moved_bytes=FLOAT * rows * (into + out),
    )


def _batch_norm(name: str, side: int, out: int) -> Shape:
    return Shape(
        name=name,
        kind="BatchNorm2d",
        weights_bytes=4 * FLOAT * out,
        tensors=4,
        moved_bytes=2 * FLOAT * side * side * out,
        rows=side * side,
    )


def _residual(depths: tuple[int, int, int, int]) -> Iterator[Shape]:
    yield _convolution("stem", 112, 3, 64, 7)
    yield _batch_norm("stem.norm", 112, 64)
    yield _elementwise("stem.relu", 112 * 112, 64, 2)
    yield _elementwise("stem.pool", 56 * 56, 64, 5)
    into = 64
    for stage, depth in enumerate(depths):
        side, inner = 56 >> stage, 64 << stage
        for i in range(depth):
            at = f"stage{stage}.{i}."
            before = side * 2 if stage and not i else side
            shapes = (
                (before, into, inner, 1),
                (side, inner, inner, 3),
                (side, inner, inner * 4, 1),
            )
            for k, (size, a, b, kernel) in enumerate(shapes):
                yield _convolution(f"{at}conv{k}", size, a, b, kernel)
                yield _batch_norm(f"{at}norm{k}", size, b)
                if k < 2:
                    yield _elementwise(f"{at}relu{k}", size * size, b, 2)
            if not i:
                yield _convolution(f"{at}shortcut", side, into, inner * 4, 1)
                yield _batch_norm(f"{at}shortcut.norm", side, inner * 4)
            yield _elementwise(f"{at}sum", side * side, inner * 4, 5)
            into = inner * 4
    yield _elementwise("pool", 49, 2_048, 1)
    yield _matrix("classes", 1, 2_048, 1_000)


NETWORKS: dict[str, tuple[Shape, ...]] = {
    "resnet50": tuple(_residual((3, 4, 6, 3))),
    "resnet101": tuple(_residual((3, 4, 23, 3))),
    "bert-base": tuple(_encoder(384, 12, 768, 12, 30_522, 512, 2)),
    "bert-large": tuple(_encoder(384, 24, 1_024, 16, 30_522, 512, 2)),
    "roberta-base": tuple(_encoder(384, 12, 768, 12, 50_265, 514, 1)),
    "roberta-large": tuple(_encoder(384, 24, 1_024, 16, 50_265, 514, 1)),
    "gpt2": tuple(_decoder(1_024, 12, 768, 12)),
    "gpt2-medium": tuple(_decoder(1_024, 24, 1_024, 16)),
}
