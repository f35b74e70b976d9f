"""What keeps a plan from being better, in words."""

from collections.abc import Sequence

from headrace.domain.plan import Stopped
from headrace.domain.problem import Problem
from headrace.planning.common.allotments import Allotments
from headrace.planning.common.candidates import NEVER_US, budget_us
from headrace.planning.common.headroom import rates_text
from headrace.planning.common.models import Model


def binding_constraint(
    problem: Problem, models: Sequence[Model], chosen: Sequence[Allotments], stopped: Stopped
) -> str:
    """Devices (or rates, when the cost is minimised) first, then what keeps batches small."""
    parts = []
    if stopped in ("time-limit", "heuristic"):
        parts.append(f"the search ended early ({stopped}); a better plan may exist")
    if problem.options.objective == "least-cost":
        parts.append(f"rates: {rates_text(problem)} must be carried")
    else:
        parts.append(_devices(problem, models, chosen))
    weakest = _weakest(models, chosen)
    parts.append(_batch_limit(problem, models[weakest], chosen[weakest]))
    return "; ".join(part for part in parts if part)


def _devices(problem: Problem, models: Sequence[Model], chosen: Sequence[Allotments]) -> str:
    used = dict.fromkeys((kind.device for kind in models[0].tables.kinds), 0.0)
    for model, allotments in zip(models, chosen, strict=True):
        for k, kind in enumerate(model.tables.kinds):
            used[kind.device] += float(int(allotments.use[:, k].sum()) * kind.share)
    full, spare = [], []
    for device, amount in used.items():
        count = problem.cluster.count(device)
        if amount > count - 1 + 1e-9:
            full.append(f"all {count} of type {device!r}")
        else:
            spare.append(device)
    if full:
        return f"devices: {' and '.join(full)} are used"
    names = " and ".join(repr(device) for device in spare)
    return f"devices: what is left of {names} forms no further pipeline that helps"


def _weakest(models: Sequence[Model], chosen: Sequence[Allotments]) -> int:
    """The model that decides the objective: the least throughput for its weight."""
    normalised = [
        float(allotments.throughput_rps.sum()) / model.demand.weight
        for model, allotments in zip(models, chosen, strict=True)
    ]
    return normalised.index(min(normalised))


def _batch_limit(problem: Problem, model: Model, chosen: Allotments) -> str:
    """What the largest chosen pipeline of this model would need at the next batch size."""
    demand, tables, pipelines = model.demand, model.tables, model.pipelines
    row = int(chosen.pipeline[chosen.throughput_rps.argmax()])
    batch = int(pipelines.batch[row])
    if batch == len(tables.p99_us):
        return f"batch size: {batch} is the largest profiled of model {demand.model!r}"
    latency, first = 0, 0
    depth = int((pipelines.kinds[row] >= 0).sum())
    for stage in range(depth):
        kind, end = int(pipelines.kinds[row, stage]), int(pipelines.ends[row, stage])
        latency += int(tables.p99_us[batch, kind, first, end])
        if stage + 1 < depth:
            after = int(pipelines.kinds[row, stage + 1])
            latency += int(tables.transfer_us[batch, kind, after, end])
        first = end
    budget = budget_us(demand.slo_us, problem.options.margin_of(demand.model))
    if latency >= NEVER_US or latency <= budget:
        return ""
    return (
        f"latency budget {budget / 1000:.1f} ms of model {demand.model!r}:"
        f" the next batch size {batch + 1} needs {latency / 1000:.1f} ms"
    )
