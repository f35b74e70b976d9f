"""Whether a model answers the same item alike each time.

One that draws random numbers does not, and nobody could tell its answers from wrong ones. Seeded
operators count too: a fresh session begins anew, so that two of them agree, and each run of one
session gives other numbers.

Cost: two runs of one item, of models that have such operators.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_inner import every_node
from headrace.domain.errors import ModelError
from headrace.profiling.observe import relative_error


def random_operators(graph: OnnxGraph) -> list[str]:
    """Those whose output nobody can foretell, in inner graphs and functions too; a Dropout without
    a training mode passes all on."""
    return sorted({node.op_type for node in every_node(graph) if _is_random(node)})


def _is_random(node: Any) -> bool:
    kind: str = node.op_type
    return (
        kind.startswith("Random")
        or kind in ("Bernoulli", "Multinomial")
        or (kind == "Dropout" and len(node.input) == 3)
    )


def export_for_inference(random: list[str]) -> str:
    """What to do about them."""
    return (
        f"an export for inference, model.eval(): its {', '.join(random)} makes every answer another"
    )


def require_repeatable(session: Any, graph: OnnxGraph, feeds: Mapping[str, NDArray[Any]]) -> None:
    """
    Args:
        session: the whole model, open.
        feeds: one item, as the file takes it.

    Raises:
        ModelError: two runs of one item give other answers.
    """
    random = random_operators(graph)
    if not random:
        return
    names = list(graph.outputs)
    once, again = session.run(names, feeds), session.run(names, feeds)
    for name, a, b in zip(names, once, again, strict=True):
        if a.shape != b.shape or not relative_error(a, b) <= 0:
            raise ModelError(
                f"{graph.path}: output {name!r} is another each time for the same item\n"
                f"  try    {export_for_inference(random)}"
            )
