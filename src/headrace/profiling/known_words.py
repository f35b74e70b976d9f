"""Words that a model knows: those in its tables and its constants."""

from collections.abc import Iterator
from itertools import chain, islice

from onnx import AttributeProto, TensorProto

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_inner import every_node

MOST_WORDS = 1000
MOST_CHARACTERS = 64


def known_words(graph: OnnxGraph) -> tuple[str, ...]:
    """At most MOST_WORDS, none that is long or has spaces; none at all where no input is text.

    To a model all words that it does not know are alike, and perhaps like no word, so that made-up
    ones show little of it.
    """
    if not any(tensor.dtype == "bytes" for tensor in graph.inputs):
        return ()
    single = (w for w in _strings(graph) if len(w) <= MOST_CHARACTERS and len(w.split()) == 1)
    return tuple(dict.fromkeys(islice(single, MOST_WORDS)))


def _strings(graph: OnnxGraph) -> Iterator[str]:
    tables = (
        strings
        for node in every_node(graph)
        for attribute in node.attribute
        for strings in (attribute.strings, attribute.t.string_data)
        if attribute.type in (AttributeProto.STRINGS, AttributeProto.TENSOR)
    )
    constants = (
        tensor.string_data
        for tensor in graph.initialisers.values()
        if tensor.data_type == TensorProto.STRING
    )
    for content in chain.from_iterable(chain(tables, constants)):
        yield content.decode(errors="replace")
