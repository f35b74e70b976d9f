"""Three small networks on one device of two cores: two take turns on one, the third has the other;
or all three on both. With their files, profiles and a plan that passes verification."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from headrace.catalog.documents import sha256_file, write_document
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning.common.assembly import Claim
from headrace.planning.common.shared_assembly import (
    ChosenDevice,
    ChosenPart,
    ChosenTenant,
    assemble_shared,
)
from headrace.verify import verify
from helpers.onnx_models import chain_model, residual_model, saved

HALF, WHOLE = Fraction(1, 2), Fraction(1)
BATCH = 4
BATCH_US = 2_000
DUTY_US = 20_000
MINUTES_US = 600_000_000
"""An objective that nothing misses, however busy the machine is."""

NETWORKS = {
    "picture": lambda: residual_model(),
    "tall": lambda: chain_model(layers=6, width=32, seed=1),
    "wide": lambda: chain_model(layers=1, width=48, seed=2),
}


class SharedCores:
    """Written to a folder."""

    def __init__(self, folder: Path, *parts: tuple[Fraction, tuple[str, ...]]) -> None:
        """`parts`: of the device, with the models that take turns there."""
        self.folder = folder
        self.models = [name for _, names in parts for name in names]
        paths = {name: saved(NETWORKS[name](), folder / f"{name}.onnx") for name in self.models}
        self.profiles = {name: _profile(name, path) for name, path in paths.items()}
        self.plan = self._planned(parts)
        assert verify(self.plan, self.profiles) == []
        self.path = folder / "plan.json"
        write_document(self.plan, self.path)

    def asked(self, model: str, items: int, seed: int) -> NDArray[np.float32]:
        """Inputs: [items, *shape]."""
        shape = self.profiles[model].inputs[0].item_shape
        return np.random.default_rng(seed).standard_normal((items, *shape)).astype(np.float32)

    def answer(self, model: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the network answers, by ONNX Runtime alone."""
        session = ort.InferenceSession(self.folder / f"{model}.onnx")
        [found] = session.run(None, {"x": rows})
        return np.asarray(found, np.float32)

    def _planned(self, parts: tuple[tuple[Fraction, tuple[str, ...]], ...]) -> Plan:
        device = ChosenDevice(
            "cpu",
            tuple(
                ChosenPart(share, DUTY_US, tuple(ChosenTenant(model, BATCH) for model in names))
                for share, names in parts
            ),
        )
        return assemble_shared(
            self._problem(),
            [device],
            Claim(bound=None, stopped="heuristic", binding="by hand", runtime_s=0.0),
        )

    def _problem(self) -> Problem:
        refs = []
        for name, profile in self.profiles.items():
            path = self.folder / f"{name}.profile.json"
            write_document(profile, path)
            refs.append(ProfileRef(model=name, path=path.name, sha256=sha256_file(path)))
        return Problem(
            cluster=Cluster(
                device_types=(DeviceType(name="cpu", cores=2, shares=(WHOLE, HALF)),),
                nodes=(Node(name="n0", devices={"cpu": 1}),),
            ),
            demands=tuple(
                Demand(model=name, slo_us=MINUTES_US, rate_rps=50.0) for name in self.profiles
            ),
            profiles=self.profiles,
            profile_refs=tuple(refs),
            options=PlanOptions(planner="by-hand", objective="least-devices", max_stages=1),
        )


def _profile(name: str, path: Path) -> Profile:
    graph = onnx.load(path).graph
    inputs, outputs = (tuple(map(_spec, side)) for side in (graph.input, graph.output))
    times = ((BATCH_US,) * BATCH,)
    return Profile(
        model=name,
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        model_path=path.name,
        model_sha256=sha256_file(path),
        cores={"cpu": 2},
        inputs=inputs,
        outputs=outputs,
        blocks=(Block(name="b", node_count=1, weights_bytes=1, cut=outputs, cut_bytes=4),),
        block_times=tuple(
            BlockTimes(device="cpu", share=share, p50_us=times, p99_us=times)
            for share in (WHOLE, HALF)
        ),
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)[1:]
    return TensorSpec(name=value.name, dtype="float32", item_shape=shape)
