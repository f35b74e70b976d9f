"""Correct plans, broken in every way that the verifier knows, and which check must see it."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec.structs import replace

from headrace.domain.plan import Deployment, MachineLoad, Pipeline, Plan, Tenant
from headrace.domain.problem import Items
from helpers.verified_plans import SHAPES

Path = tuple[str | int, ...]
Change = Callable[[Any], Any]
HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


class Mutant(NamedTuple):
    """One way to break the plan of one shape, and the check that must notice."""

    check: str
    shape: str
    path: Path
    change: Change


def edited(value: Any, path: Path, change: Change) -> Any:
    """A copy of nested records and tuples with the value at `path` changed."""
    if not path:
        return change(value)
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        return (*value[:head], edited(value[head], rest, change), *value[head + 1 :])
    return replace(value, **{head: edited(getattr(value, head), rest, change)})


def to(new: Any) -> Change:
    return lambda _: new


def plus(step: float) -> Change:
    return lambda value: value + step


def times(factor: float) -> Change:
    return lambda value: value * factor


def swapped(old: str, new: str) -> Change:
    def change(text: str) -> str:
        assert old in text, text
        return text.replace(old, new)

    return change


def without(index: int) -> Change:
    return lambda items: (*items[:index], *items[index + 1 :])


def twice(index: int) -> Change:
    return lambda items: (*items, items[index])


def and_an_app_named(name: str) -> Change:
    return lambda claims: (*claims, edited(claims[0], ("app", "name"), to(name)))


def as_fast(factor: float) -> Change:
    """A pipeline, and its stages."""

    def change(pipeline: Pipeline) -> Pipeline:
        stages = (edited(each, ("throughput_rps",), times(factor)) for each in pipeline.stages)
        rps = factor * pipeline.throughput_rps
        return replace(pipeline, stages=tuple(stages), throughput_rps=rps)

    return change


def all_as_fast(factor: float) -> Change:
    """All deployments, and their pipelines."""

    def change(deployments: tuple[Deployment, ...]) -> tuple[Deployment, ...]:
        return tuple(
            replace(
                each,
                pipelines=tuple(map(as_fast(factor), each.pipelines)),
                throughput_rps=factor * each.throughput_rps,
            )
            for each in deployments
        )

    return change


def fields(**new: Any) -> Change:
    return lambda record: replace(record, **new)


DEPLOYMENT: Path = ("deployments", 0)
START: Path = (*DEPLOYMENT, "start")
PIPELINE: Path = (*DEPLOYMENT, "pipelines", 0)
STAGE: Path = (*PIPELINE, "stages", 0)
SECOND: Path = (*PIPELINE, "stages", 1)
SLOT: Path = ("slots", 0)
GPU: Path = ("cluster", "device_types", 0)
DEPTH: Path = (*DEPLOYMENT, "depths", 2)
DEPTH_STAGE: Path = (*DEPTH, "stages", 1)
STRANGER = Tenant(model="m", pipeline="p9", stage=0)

LOAD = MachineLoad(
    machines=1.0,
    rate_rps=1.0,
    machine_rps=1.0,
    remaining_rps=1.0,
    collect_us=0,
    worst_case_us=1,
    cost_per_hour=0.0,
)

MUTANTS: tuple[Mutant, ...] = (
    # Starts of models that are not in memory
    Mutant("start", "started", (*START, "start_us"), plus(1)),
    Mutant("start", "started", (*START, "start_us"), plus(-1)),
    Mutant("start", "started", (*START, "bound_us"), plus(1)),
    Mutant("start", "started", (*START, "host_bytes"), plus(1)),
    Mutant("start", "started", (*START, "host"), to(())),
    Mutant("start", "started", (*START, "host"), lambda host: (*host, 99)),
    Mutant("start", "started", (*START, "host"), lambda host: (*host, host[0])),
    Mutant("start", "started", (*START, "transfers"), without(0)),
    Mutant("start", "started", (*START, "transfers"), twice(0)),
    Mutant("start", "started", (*START, "transfers"), lambda given: given[::-1]),
    Mutant("start", "started", (*START, "transfers", -1, "helper"), to(False)),
    Mutant("start", "started", (*START, "waits_for_all"), to(True)),
    Mutant("start", "started", (*START, "batch_size"), to(2)),
    Mutant("start", "started", (*START, "device"), to("gpu-of-dreams")),
    Mutant("start", "started", (*START, "share"), to(HALF)),
    # Models that are absent at times: all of a plan, each with its start, or none
    Mutant("start", "single", (*DEPLOYMENT, "cold_share"), to(0.5)),
    Mutant("start", "several", (*DEPLOYMENT, "cold_share"), to(0.0)),
    Mutant("start", "malleable", (*DEPLOYMENT, "cold_share"), to(0.5)),
    Mutant("start", "together", (*DEPLOYMENT, "cold_share"), to(0.5)),
    Mutant("start", "started", (*DEPLOYMENT, "cold_share"), to(0.5)),
    Mutant("start", "provisioned", START, to(None)),
    Mutant("start", "provisioned", (*DEPLOYMENT, "cold_share"), to(None)),
    Mutant("start", "started", (*START, "planner"), to("")),
    Mutant("start", "started", (*START, "planner"), to("another")),
    Mutant("start", "started", ("options", "provision"), to("another")),
    Mutant("start", "started", ("options", "provision"), to("")),
    Mutant("start", "single", ("options", "provision"), to("exact")),
    Mutant("demands", "single", ("demands",), twice(0)),
    Mutant("demands", "malleable", ("demands",), twice(0)),
    Mutant("start", "started", ("slots", 0, "helper"), to("nowhere")),
    Mutant("start", "started", ("slots", 0, "helper"), to("local/a-0")),
    # Demands, profiles, names
    Mutant("demands", "single", ("options", "carried_parts"), to({"other": 1.0})),
    Mutant("demands", "single", ("options", "link_parts"), to({"other": 1.0})),
    Mutant("demands", "single", ("options", "model_margins"), to({"other": 0.1})),
    Mutant("demands", "together", ("options", "module_headroom"), to({"app.other": 0.1})),
    Mutant("names", "together", ("apps",), twice(0)),
    Mutant("names", "together", ("apps", 0, "app", "name"), to("big")),
    Mutant("names", "together", ("apps",), and_an_app_named("app.first")),
    Mutant("demands", "provisioned", ("demands", 0, "model"), to("other")),
    Mutant("pool", "provisioned", (*STAGE, "pool"), without(0)),
    Mutant("demands", "several", ("deployments",), without(1)),
    Mutant("demands", "several", ("deployments",), twice(0)),
    Mutant("demands", "several", ("demands",), without(1)),
    Mutant("demands", "single", (*DEPLOYMENT, "model"), to("other")),
    Mutant("demands", "single", (*DEPLOYMENT, "slo_us"), plus(1)),
    Mutant("demands", "single", ("demands", 0, "slo_us"), plus(1)),
    Mutant("demands", "together", ("deployments",), without(0)),
    Mutant("demands", "together", ("demands",), without(1)),
    Mutant("demands", "together", ("demands", 0, "slo_us"), plus(1)),
    Mutant("apps", "together", ("deployments",), without(2)),
    Mutant("rates", "together", ("demands", 1, "rate_rps"), times(1_000)),
    Mutant("rates", "together", ("apps", 0, "app", "rate_rps"), times(1_000)),
    Mutant("objective", "together", ("options", "objective"), to("least-devices")),
    Mutant("load", "together", ("deployments", 2, "pipelines", 0, "load", "follows"), to(True)),
    Mutant("load", "together", ("slots", 0, "duty_us"), to(None)),
    Mutant("worst-case", "together", ("apps", 0, "worst_case_us"), plus(-1)),
    Mutant("slo", "together", ("demands", 0, "slo_us"), to(20_000)),
    Mutant("profiles", "single", ("profiles",), to(())),
    Mutant("profiles", "several", ("profiles",), twice(0)),
    Mutant("profiles", "single", ("profiles", 0, "model"), to("other")),
    Mutant("profiles", "single", ("profiles", 0, "sha256"), to("cafe")),
    Mutant("profiles", "single", ("profiles", 0, "path"), to("")),
    Mutant("names", "single", ("slots", 1, "name"), to("local/a-0")),
    Mutant("names", "single", (*DEPLOYMENT, "pipelines", 1, "name"), to("p0")),
    Mutant("served", "single", (*DEPLOYMENT, "pipelines"), to(())),
    # Stages
    Mutant("depth", "shared", ("options",), fields(min_stages=1, max_stages=1)),
    Mutant("depth", "shared", ("options", "min_stages"), to(3)),
    Mutant("depth", "single", (*PIPELINE, "stages"), to(())),
    Mutant("blocks", "single", (*STAGE, "end_block"), to(3)),
    Mutant("blocks", "single", (*STAGE, "first_block"), to(1)),
    Mutant("blocks", "single", (*STAGE, "end_block"), to(5)),
    Mutant("blocks", "single", (*STAGE, "first_block"), to(-1)),
    Mutant("blocks", "shared", (*SECOND, "first_block"), plus(-1)),
    Mutant("blocks", "shared", (*SECOND, "first_block"), plus(1)),
    Mutant("blocks", "shared", (*PIPELINE, "stages"), lambda stages: stages[::-1]),
    Mutant("batch", "single", (*PIPELINE, "batch_size"), to(0)),
    Mutant("batch", "single", (*PIPELINE, "batch_size"), to(5)),
    Mutant("batch", "single", ("options", "max_batch"), to(1)),
    Mutant("batch", "single", (*STAGE, "share"), to(HALF)),
    Mutant("share", "single", (*STAGE, "share"), to(HALF)),
    Mutant("share", "single", (*STAGE, "device"), to("gpu-of-dreams")),
    Mutant("share", "shared", (*SLOT, "share"), to(THIRD)),
    Mutant("share", "shared", ("cluster", "device_types", 0, "shares"), to((Fraction(1),))),
    Mutant("pool", "single", (*STAGE, "pool"), to(())),
    Mutant("pool", "shared", (*STAGE, "pool"), to(())),
    Mutant("pool", "shared", (*SECOND, "pool"), to(())),
    Mutant("pool", "single", (*STAGE, "pool"), twice(0)),
    Mutant("pool", "single", (*STAGE, "pool", 0), to("nowhere/a-0")),
    Mutant("slot-match", "single", (*SLOT, "device"), to("b")),
    Mutant("slot-match", "shared", (*SLOT, "share"), to(Fraction(1))),
    Mutant("slot-match", "shared", (*STAGE, "device"), to("b")),
    # Slots
    Mutant("tenants", "single", (*SLOT, "tenants"), to(())),
    Mutant("tenants", "single", (*SLOT, "tenants"), twice(0)),
    Mutant("tenants", "single", (*SLOT, "tenants"), to((STRANGER,))),
    Mutant("tenants", "single", (*SLOT, "tenants", 0, "pipeline"), to("p1")),
    Mutant("tenants", "shared", (*SLOT, "tenants", 0, "stage"), plus(7)),
    Mutant("tenants", "shared", (*SLOT, "tenants", 0, "stage"), to(-1)),
    Mutant("tenants", "several", (*SLOT, "tenants", 0, "model"), to("stranger")),
    Mutant("tenants", "single", (*STAGE, "pool"), without(0)),
    Mutant("tenants", "turns", ("options", "max_tenants"), to(1)),
    Mutant("place", "single", (*SLOT, "node"), to("nowhere")),
    Mutant("place", "single", (*SLOT, "device_index"), to(2)),
    Mutant("place", "single", (*SLOT, "device_index"), to(-1)),
    Mutant("place", "shared", (*SLOT, "node"), to("n1")),
    Mutant("place", "shared", ("cluster", "nodes", 0, "devices"), to({"a": 1})),
    Mutant("devices", "shared", ("slots", 2, "device_index"), to(0)),
    Mutant("devices", "single", ("slots", 1, "device_index"), to(0)),
    Mutant("memory", "shared", ("cluster", "device_types", 0, "memory_bytes"), to(100_000)),
    Mutant("memory", "shared", ("cluster", "device_types", 1, "memory_bytes"), to(100_000)),
    # Turns and slowdowns
    Mutant("duty", "single", (*SLOT, "duty_us"), to(0)),
    Mutant("duty", "shared", (*SLOT, "duty_us"), to(1)),
    Mutant("slowdown", "single", (*SLOT, "tenants", 0, "slowdown"), to(0.5)),
    Mutant("slowdown", "single", (*SLOT, "tenants", 0, "slowdown"), to(math.nan)),
    Mutant("duty", "turns", ("slots", 1, "duty_us"), times(0.5)),
    Mutant("duty", "turns", ("cluster", "device_types", 0, "max_utilisation"), to(0.3)),
    Mutant("slo", "turns", ("slots", 1, "duty_us"), plus(1_000_000)),
    Mutant("slo", "turns", ("demands", 0, "slo_us"), to(20_000)),
    Mutant("throughput", "turns", ("slots", 1, "duty_us"), plus(1)),
    Mutant("throughput", "turns", ("slots", 2, "duty_us"), to(None)),
    Mutant("rates", "turns", ("demands", 1, "rate_rps"), times(3)),
    Mutant("devices", "turns", ("cluster", "device_types", 0, "splits"), to(((Fraction(1),),))),
    Mutant("devices", "turns", ("slots", 1, "share"), to(HALF)),
    Mutant("devices", "turns", ("slots", 2, "node"), to("n0")),
    Mutant("memory", "turns", ("cluster", "device_types", 0, "memory_bytes"), times(0.3)),
    Mutant("slowdown", "turns", (*SLOT, "tenants", 0, "slowdown"), plus(-0.001)),
    Mutant("latency", "turns", (*SLOT, "tenants", 0, "slowdown"), plus(0.01)),
    Mutant("latency", "gated", (*SLOT, "tenants", 0, "slowdown"), to(1e308)),
    Mutant(
        "batch", "together", ("deployments", 2, "pipelines", 0, "batch_size"), to(1_000_000_000)
    ),
    Mutant("slowdown", "turns", ("interference", 0, "coefficients", 0), plus(0.01)),
    Mutant("slowdown", "turns", ("interference",), twice(0)),
    Mutant("slowdown", "turns", ("interference", 0, "device"), to("tpu")),
    Mutant("objective", "turns", ("objective",), plus(-1)),
    Mutant("cost", "turns", ("cost_per_hour",), plus(-1)),
    # Figures
    Mutant("latency", "single", (*STAGE, "latency_us"), plus(1)),
    Mutant("latency", "single", (*STAGE, "latency_us"), plus(-1)),
    Mutant("latency", "shared", (*SECOND, "latency_us"), plus(-1)),
    Mutant("latency", "shared", (*PIPELINE, "latency_us"), plus(1)),
    Mutant("latency", "single", (*PIPELINE, "batch_size"), to(1)),
    Mutant("transfer", "shared", (*STAGE, "transfer_us"), plus(1)),
    Mutant("transfer", "shared", (*STAGE, "transfer_us"), to(0)),
    Mutant("transfer", "shared", (*SECOND, "transfer_us"), to(5)),
    Mutant("transfer", "single", (*STAGE, "transfer_us"), to(5)),
    Mutant("transfer", "shared", ("cluster", "nodes", 0, "bandwidth_gbps"), to(0.9)),
    Mutant("budget", "single", (*DEPLOYMENT, "budget_us"), plus(1)),
    Mutant("budget", "single", (*DEPLOYMENT, "budget_us"), plus(-1)),
    Mutant("budget", "single", ("options", "margin"), to(0.39)),
    Mutant("slo", "single", ("options", "margin"), to(0.9)),
    Mutant("slo", "single", ("demands", 0, "slo_us"), to(20_000)),
    Mutant("slo", "shared", ("demands", 0, "slo_us"), to(20_000)),
    Mutant("throughput", "single", (*STAGE, "throughput_rps"), times(1.001)),
    Mutant("throughput", "single", (*STAGE, "throughput_rps"), times(0.999)),
    Mutant("throughput", "single", (*STAGE, "throughput_rps"), to(math.nan)),
    Mutant("throughput", "shared", (*SECOND, "throughput_rps"), times(1 + 1e-7)),
    Mutant("throughput", "shared", (*PIPELINE, "throughput_rps"), times(1.001)),
    Mutant("throughput", "several", (*DEPLOYMENT, "throughput_rps"), times(1.001)),
    Mutant("throughput", "shared", ("cluster", "device_types", 0, "max_utilisation"), to(0.8)),
    Mutant("throughput", "shared", ("cluster", "nodes", 1, "bandwidth_gbps"), to(0.05)),
    # Resources
    Mutant("links", "shared", ("cluster", "nodes", 0, "bandwidth_gbps"), to(0.001)),
    Mutant("links", "shared", ("cluster", "nodes", 1, "bandwidth_gbps"), to(0.001)),
    Mutant("time", "single", (), lambda plan: _with_second_tenant(plan)),
    # Claims
    Mutant("rates", "several", ("demands", 0, "rate_rps"), to(1_000.0)),
    Mutant("rates", "several", (*DEPLOYMENT, "dummy_rps"), to(60.0)),
    Mutant("dummy", "single", (*DEPLOYMENT, "dummy_rps"), to(-1.0)),
    Mutant("dummy", "single", (*DEPLOYMENT, "dummy_rps"), to(1e6)),
    Mutant("dummy", "single", (*DEPLOYMENT, "dummy_rps"), to(math.nan)),
    Mutant("objective", "single", ("objective",), times(1.001)),
    Mutant("objective", "several", ("objective",), times(0.999)),
    Mutant("objective", "single", ("demands", 0, "weight"), to(2.0)),
    Mutant("objective", "single", ("options", "objective"), to("least-cost")),
    Mutant("objective", "several", ("options", "objective"), to("throughput")),
    # The gateway
    Mutant("gateway", "gated", (*DEPLOYMENT, "throughput_rps"), times(1.001)),
    Mutant("gateway", "gated", ("deployments", 1, "throughput_rps"), times(1.001)),
    Mutant("throughput", "gated", (*DEPLOYMENT, "throughput_rps"), times(100)),
    Mutant("throughput", "gated", (*STAGE, "throughput_rps"), times(1.001)),
    Mutant("bound", "single", ("bound",), times(0.99)),
    Mutant("bound", "single", ("bound",), times(1.01)),
    Mutant("bound", "single", ("bound",), to(math.inf)),
    Mutant("bound", "several", ("bound",), times(1.01)),
    Mutant("bound", "single", ("bound",), to(None)),
    Mutant("bound", "single", ("gap",), to(0.5)),
    Mutant("bound", "single", ("gap",), to(None)),
    Mutant("stopped", "single", ("stopped",), to("infeasible")),
    Mutant("stopped", "single", (), fields(bound=None, gap=None)),
    Mutant("stopped", "single", (), lambda plan: _with_gap(plan, 0.01)),
    Mutant("cost", "several", ("cost_per_hour",), times(1.01)),
    Mutant("cost", "several", ("cost_per_hour",), to(None)),
    Mutant("cost", "single", ("cost_per_hour",), to(1.0)),
    Mutant("cost", "several", ("cluster", "device_types", 1, "price_per_hour"), to(0.4)),
    Mutant("claims", "single", ("planner",), to("somebody")),
    Mutant("claims", "single", ("binding",), to("")),
    Mutant("claims", "single", ("runtime_s",), to(-1.0)),
    # What only a module of an app may state
    Mutant("claims", "single", (*DEPLOYMENT, "rate_rps"), to(1e9)),
    Mutant("claims", "several", (*DEPLOYMENT, "worst_case_us"), to(-1)),
    Mutant("claims", "several", (*DEPLOYMENT, "cost_per_hour"), to(0.0)),
    Mutant("claims", "shared", (*DEPLOYMENT, "app"), to("traffic")),
    Mutant("claims", "single", (*PIPELINE, "load"), to(LOAD)),
    # What the binding constraint says in words
    Mutant("claims", "single", ("cluster", "nodes", 0, "devices"), to({"a": 200, "b": 200})),
    Mutant("claims", "single", ("binding",), to("devices: all 3 of type 'a' are used")),
    Mutant("claims", "single", ("binding",), to("what is left of 'a' forms no further pipeline")),
    Mutant("claims", "single", ("binding",), to("7 devices in 9 parts, 2 of them used in turns")),
    Mutant("claims", "several", ("binding",), swapped("60 rps", "90 rps")),
    Mutant("claims", "single", ("binding",), swapped("model 'm'", "model 'n'")),
    Mutant("claims", "single", ("binding",), swapped("size: 4 is", "size: 8 is")),
    Mutant("claims", "shared", ("binding",), swapped("50.8 ms", "50.9 ms")),
    Mutant("claims", "shared", ("binding",), swapped("size 3", "size 4")),
    Mutant("claims", "shared", ("binding",), swapped("64.4 ms", "64.5 ms")),
    # Depths of malleable models
    Mutant("served", "malleable", (*DEPLOYMENT, "depths"), to(())),
    Mutant("served", "malleable", (*DEPLOYMENT, "pipelines"), lambda _: _of_single()),
    Mutant("depth", "malleable", (*DEPLOYMENT, "depths"), without(1)),
    Mutant("depth", "malleable", (*DEPLOYMENT, "depths"), lambda depths: depths[::-1]),
    Mutant("depth", "malleable", ("options", "max_depth"), to(2)),
    Mutant("depth", "malleable", (*DEPTH, "stages"), twice(0)),
    Mutant("blocks", "malleable", (*DEPTH_STAGE, "first_block"), plus(1)),
    Mutant("blocks", "malleable", (*DEPTH_STAGE, "end_block"), plus(1)),
    Mutant("blocks", "malleable", (*DEPTH, "stages", 2, "end_block"), to(1_000_000)),
    Mutant("batch", "malleable", (*DEPTH, "batch_size"), to(1)),
    Mutant("batch", "malleable", ("options", "item_batch"), to(1)),
    Mutant("share", "malleable", (*DEPTH_STAGE, "share"), to(HALF)),
    Mutant("share", "malleable", (*DEPTH_STAGE, "device"), to("tpu")),
    Mutant("pool", "malleable", ("slots",), lambda slots: slots[:1]),
    Mutant("duty", "malleable", (*SLOT, "duty_us"), to(1_000_000)),
    Mutant("tenants", "malleable", (*SLOT, "tenants"), to((STRANGER,))),
    Mutant("place", "malleable", (*SLOT, "device_index"), to(9)),
    Mutant("devices", "malleable", ("slots", 1, "device_index"), to(0)),
    Mutant("latency", "malleable", (*DEPTH_STAGE, "latency_us"), plus(1)),
    Mutant("latency", "malleable", (*DEPTH, "fill_us"), plus(-1)),
    Mutant("latency", "malleable", (*DEPTH, "pace_us"), plus(-1)),
    Mutant("transfer", "malleable", (*DEPTH_STAGE, "transfer_us"), plus(1)),
    Mutant("transfer", "malleable", ("cluster", "nodes", 0, "bandwidth_gbps"), to(0.5)),
    Mutant("items", "malleable", (*DEPLOYMENT, "max_items"), plus(1)),
    Mutant("items", "malleable", (*DEPLOYMENT, "max_items"), to(None)),
    Mutant("items", "malleable", ("options", "max_items"), to(9)),
    Mutant("items", "single", (*DEPLOYMENT, "max_items"), to(4)),
    Mutant("items", "single", ("demands", 0, "items"), to(Items(mean=4))),
    Mutant("slo", "malleable", ("demands", 0, "slo_us"), to(50_000)),
    Mutant("slo", "malleable", ("demands", 0, "items"), to(Items(mean=1_000))),
    Mutant("memory", "malleable", ("cluster", "device_types", 0, "memory_bytes"), to(8_000_000)),
    Mutant("throughput", "malleable", (*DEPLOYMENT, "throughput_rps"), times(1.001)),
    Mutant("throughput", "malleable", (*DEPLOYMENT, "throughput_rps"), to(math.nan)),
    Mutant("throughput", "malleable", ("slots",), without(0)),
    Mutant("throughput", "malleable", ("slots",), to(())),
    Mutant("throughput", "malleable", (*SLOT, "device"), to("tpu")),
    Mutant("throughput", "malleable", ("cluster", "device_types", 0, "max_utilisation"), to(1e-3)),
    Mutant("objective", "malleable", ("objective",), times(0.999)),
    Mutant("bound", "malleable", ("bound",), times(0.1)),
    Mutant("rates", "malleable", ("demands", 1, "rate_rps"), to(1_000.0)),
    Mutant("cost", "malleable", ("cost_per_hour",), plus(-0.5)),
    Mutant("claims", "malleable", ("binding",), swapped("2 of 'a'", "4 of 'a'")),
    Mutant("claims", "provisioned", ("binding",), swapped("33.3%", "0.1%")),
    Mutant("claims", "provisioned", ("binding",), swapped("33.3%", "33.4%")),
    Mutant("claims", "provisioned", ("binding",), swapped("on gpu", "on tpu")),
    Mutant("claims", "malleable", ("binding",), swapped("of at most 87", "of at most 86")),
    # More models than memory
    Mutant("start", "provisioned", (*START, "start_us"), plus(-1)),
    Mutant("start", "provisioned", (*DEPLOYMENT, "cold_share"), plus(0.001)),
    Mutant("start", "provisioned", (*DEPLOYMENT, "cold_share"), plus(-0.001)),
    Mutant("start", "provisioned", (*SLOT, "helper"), to(None)),
    Mutant("start", "provisioned", (*SLOT, "helper"), to("n0/gpu-0")),
    Mutant("start", "provisioned", (*SLOT, "helper"), to("n0/gpu-1")),
    Mutant("start", "provisioned", (*SLOT, "helper"), to("n0/gpu-9")),
    Mutant("start", "provisioned", (*GPU, "copy_stream"), to(False)),
    Mutant("start", "provisioned", (*GPU, "devices_per_link"), to(4)),
    Mutant("start", "provisioned", (*GPU, "memory_bytes"), plus(16_000_000)),
    Mutant("memory", "provisioned", (*GPU, "memory_bytes"), to(None)),
    Mutant("memory", "provisioned", (*GPU, "memory_bytes"), to(1_000)),
    Mutant("tenants", "provisioned", (*SLOT, "tenants"), to((STRANGER,))),
    Mutant("tenants", "provisioned", (*SLOT, "duty_us"), to(1_000_000)),
    Mutant("latency", "provisioned", (*STAGE, "latency_us"), plus(1)),
    Mutant("latency", "provisioned", (*PIPELINE, "latency_us"), plus(-1)),
    Mutant("transfer", "provisioned", (*STAGE, "transfer_us"), plus(1)),
    Mutant("slo", "provisioned", (*DEPLOYMENT, "budget_us"), to(2_000)),
    Mutant("throughput", "provisioned", (*STAGE, "throughput_rps"), times(1.001)),
    Mutant("throughput", "provisioned", PIPELINE, as_fast(10.0)),
    Mutant("throughput", "provisioned", ("deployments",), all_as_fast(0.5)),
    Mutant("throughput", "provisioned", (*DEPLOYMENT, "throughput_rps"), times(0.999)),
    Mutant("throughput", "provisioned", (*DEPLOYMENT, "throughput_rps"), times(1.001)),
    Mutant("throughput", "provisioned", (*DEPLOYMENT, "throughput_rps"), to(math.nan)),
    Mutant("throughput", "provisioned", (*GPU, "max_utilisation"), to(0.5)),
    Mutant("throughput", "provisioned", ("slots",), lambda slots: slots[:2]),
    Mutant("objective", "provisioned", ("objective",), times(0.999)),
)


def _of_single() -> tuple[Pipeline, ...]:
    return SHAPES["single"]().plan.deployments[0].pipelines


def _with_second_tenant(plan: Plan) -> Plan:
    """The first pipeline's slots are promised to another one of its kind as well."""
    deployment = plan.deployments[0]
    other = replace(deployment.pipelines[0], name="p9")
    tenants = {
        name: Tenant(model=deployment.model, pipeline="p9", stage=index)
        for index, stage in enumerate(other.stages)
        for name in stage.pool
    }
    return replace(
        plan,
        deployments=(replace(deployment, pipelines=(*deployment.pipelines, other)),),
        slots=tuple(
            replace(slot, tenants=(*slot.tenants, tenants[slot.name]))
            if slot.name in tenants
            else slot
            for slot in plan.slots
        ),
    )


def _with_gap(plan: Plan, gap: float) -> Plan:
    return replace(plan, bound=plan.objective * (1 + gap), gap=gap)
