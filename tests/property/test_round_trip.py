"""What is written is what is read, for every field that a document can hold."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.documents import (
    encode_document,
    read_plan,
    read_problem,
    read_profile,
    write_document,
)
from headrace.domain.cluster import Cluster
from headrace.domain.errors import HeadraceError
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand, PlanOptions, ProfileRef
from headrace.domain.profile import Profile, Provenance, StageTimes
from headrace.domain.tensors import TensorSpec
from helpers.problems import make_cluster, make_profile

MAX_US = 2**53
FIRST = "".join(chr(c) for c in range(128) if chr(c).isalnum())
# As "[A-Za-z0-9][A-Za-z0-9._-]{0,12}", which takes five times as long to draw from.
names = st.builds(str.__add__, st.sampled_from(FIRST), st.text(f"{FIRST}._-", max_size=12))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
durations_us = st.integers(0, MAX_US)
counts = st.integers(0, 1000)
amounts = st.floats(0, 1e12, allow_nan=False)
shares = st.fractions(Fraction(1, 100), Fraction(1), max_denominator=100)


def few(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=2).map(tuple)


stages = st.builds(
    Stage,
    first_block=counts,
    end_block=counts,
    device=names,
    share=shares,
    pool=few(names),
    latency_us=durations_us,
    transfer_us=durations_us,
    throughput_rps=amounts,
)
pipelines = st.builds(
    Pipeline,
    name=names,
    batch_size=counts,
    stages=few(stages),
    latency_us=durations_us,
    throughput_rps=amounts,
)
deployments = st.builds(
    Deployment,
    model=names,
    slo_us=durations_us,
    budget_us=durations_us,
    pipelines=few(pipelines),
    throughput_rps=amounts,
    dummy_rps=amounts,
)
slots = st.builds(
    Slot,
    name=names,
    node=names,
    device=names,
    device_index=counts,
    share=shares,
    tenants=few(st.builds(Tenant, model=names, pipeline=names, stage=counts)),
)


def clusters() -> st.SearchStrategy[Cluster]:
    return st.builds(
        make_cluster,
        nodes=st.dictionaries(
            names, st.dictionaries(names, st.integers(1, 9), min_size=1, max_size=2),
            min_size=1, max_size=2,
        ),
        shares=st.lists(shares, min_size=1, max_size=3),
        gbps=st.none() | st.floats(0.1, 400),
        max_utilisation=st.floats(0.1, 1),
    )  # fmt: skip


plans = st.builds(
    Plan,
    planner=names,
    options=st.builds(
        PlanOptions, margin=st.floats(0, 0.9), max_batch=st.none() | st.integers(1, 1000)
    ),
    cluster=clusters(),
    demands=few(
        st.builds(
            Demand,
            model=names,
            slo_us=st.integers(1, MAX_US),
            weight=st.floats(0.1, 10),
            rate_rps=st.none() | st.floats(0.1, 1e6),
        )
    ),
    profiles=few(st.builds(ProfileRef, model=names, path=texts, sha256=texts)),
    slots=few(slots),
    deployments=few(deployments),
    objective=amounts,
    bound=st.none() | amounts,
    gap=st.none() | amounts,
    stopped=st.sampled_from(["optimal", "infeasible", "time-limit", "heuristic"]),
    binding=texts,
    cost_per_hour=st.none() | amounts,
    runtime_s=amounts,
)
tensors = st.builds(
    TensorSpec, name=texts, dtype=names, item_shape=st.lists(counts, max_size=3).map(tuple)
)
few_tensors = st.lists(tensors, max_size=2, unique_by=lambda tensor: tensor.name).map(tuple)
base = make_profile("m", blocks=2, devices={"cpu": 1.0}, max_batch=2)
profiles = st.builds(
    Profile,
    model=names,
    provenance=st.builds(
        Provenance,
        kind=st.sampled_from(["measured", "estimated", "imported", "synthetic"]),
        date=texts,
        machine=texts,
        software=st.dictionaries(texts, texts, max_size=2),
        repeats=st.none() | counts,
        error_fraction=st.none() | st.floats(0, 1),
        notes=few(texts),
    ),
    model_path=st.none() | texts,
    model_sha256=st.none() | texts,
    boundary=st.sampled_from(["float32", "float16"]),
    inputs=few_tensors,
    outputs=few_tensors,
    blocks=st.just(base.blocks),
    block_times=st.just(base.block_times),
    stage_times=st.lists(
        st.builds(
            StageTimes,
            device=names,
            share=shares,
            first_block=st.just(0),
            end_block=st.integers(1, 2),
            p50_us=st.just((1, 2)),
            p99_us=st.just((3, 4)),
        ),
        max_size=2,
        unique_by=lambda times: (times.device, times.share, times.end_block),
    ).map(tuple),
)


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "document.json"


@given(plan=plans)
def test_a_plan_with_everything_that_its_schema_can_hold_is_read_as_written(
    plan: Plan, file: Path
) -> None:
    write_document(plan, file)

    again = read_plan(file)

    assert again == plan
    assert encode_document(again) == file.read_bytes()


@given(profile=profiles)
def test_a_profile_with_everything_that_its_schema_can_hold_is_read_as_written(
    profile: Profile, file: Path
) -> None:
    write_document(profile, file)

    again = read_profile(file)

    assert again == profile
    assert encode_document(again) == file.read_bytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
field_names = ["cluster", "models", "options", "blocks", "block_times", "slots", "schema"]


@given(
    content=st.binary(max_size=200)
    | texts.map(str.encode)
    | st.dictionaries(st.sampled_from(field_names), json_values).map(
        lambda fields: json.dumps({"schema": "headrace.problem/1", **fields}).encode()
    ),
    suffix=st.sampled_from([".json", ".yaml"]),
)
def test_whatever_a_file_holds_it_is_read_or_refused_by_an_error_of_ours(
    content: bytes, suffix: str, file: Path
) -> None:
    path = file.with_suffix(suffix)
    path.write_bytes(content)

    for read in (read_problem, read_profile, read_plan):
        with contextlib.suppress(HeadraceError):
            read(path)
