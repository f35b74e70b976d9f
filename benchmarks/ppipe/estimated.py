"""Profiles without the reference data: models built here, timings by `headrace estimate`."""

import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path

from benchmarks.estimate.models import MODELS
from msgspec.structs import replace

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.onnx_shapes import infer_specs
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.profiling.estimate import EstimateOptions, estimate_model
from headrace.profiling.items import input_specs
from headrace.profiling.observe import Observed, UsableCut

DEVICES = ("L4", "T4", "V100", "P4")
QUARTERS = tuple(Fraction(1, k) for k in (1, 2, 3, 4))


@cache
def estimated_profiles() -> dict[str, Profile]:
    """The models that `benchmarks.estimate` builds, on the paper's four GPU types.

    With one latency per block and batch size, as the published profiles have: our planner keeps
    the SLO at the p99, the paper's rule knows none.
    """
    with tempfile.TemporaryDirectory() as folder:
        return {
            model: _without_spread(
                estimate_model(
                    build(path),
                    EstimateOptions(
                        devices=DEVICES, shares=QUARTERS, boundary="float16", name=model
                    ),
                    observed=_from_shapes(path),
                )
            )
            for at, (model, (_, build)) in enumerate(MODELS.items())
            if (path := Path(folder) / f"{at}.onnx")
        }


def _without_spread(profile: Profile) -> Profile:
    times = tuple(replace(entry, p99_us=entry.p50_us) for entry in profile.block_times)
    return replace(profile, block_times=times)


def _from_shapes(path: Path) -> Observed:
    """What `headrace estimate` learns by running a model; these have no weights to run with."""
    graph = load_graph(path)
    shapes = {
        tensor.name: tuple(dim for dim in tensor.item_dims if dim is not None)
        for tensor in graph.inputs
    }
    cuts = find_cuts(graph, 1)
    names = dict.fromkeys([*graph.outputs, *(name for cut in cuts for name in cut.tensors)])
    found = infer_specs(graph, shapes, names)
    usable = []
    for cut in cuts:
        specs = [found.get(name) for name in cut.tensors]
        tensors = tuple(spec for spec in specs if isinstance(spec, TensorSpec))
        if len(tensors) == len(specs):
            usable.append(UsableCut(position=cut.position, tensors=tensors))
    outputs = [found.get(name) for name in graph.outputs]
    return Observed(
        inputs=tuple(input_specs(graph, shapes)),
        outputs=tuple(spec for spec in outputs if isinstance(spec, TensorSpec)),
        cuts=tuple(usable),
    )
