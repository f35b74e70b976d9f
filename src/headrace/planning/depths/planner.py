"""From a problem to a malleable plan: every model on all slots, at every depth."""

from collections.abc import Sequence

from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.errors import DocumentError
from headrace.domain.plan import OPTIMAL_GAP, Deployment, PlanResult, Slot, Stopped
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.assembly import Claim, written
from headrace.planning.common.candidates import SlotKind, budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.capacity import Capacity, Carried
from headrace.planning.depths.chain import DepthChain, chain_of, whole_kinds
from headrace.planning.depths.memory import holds, weights_needed
from headrace.planning.depths.refusal import beyond_slo, refuse_memory, refuse_rates, refuse_slo
from headrace.planning.depths.table import DepthTable, depth_documents, depth_table

MAX_DEPTH = 8
"""Slots of one request, where nothing else is asked for (Accordion, section 4.1)."""


def plan_malleable(problem: Problem) -> PlanResult:
    """The best cut of every model for each depth, and what all slots carry with them.

    Raises:
        DocumentError: an objective that malleable plans do not have, a model of several sizes or
            without a profile of these slots, a depth beyond the blocks, or more items than allowed.
    """
    deadline = Deadline(problem.options.time_limit_s)
    _check(problem)
    offered = whole_kinds(problem.cluster)
    kinds = {kind: count for kind, count in offered.items() if holds(problem, kind)}
    if not kinds:
        needed = {kind: weights_needed(problem, kind) for kind in offered}
        return _refused(refuse_memory(problem.cluster, needed), deadline)
    tables = [_table(problem, demand, kinds, deadline) for demand in problem.demands]
    for demand, table in zip(problem.demands, tables, strict=True):
        if refusal := refuse_slo(problem, demand, table):
            return _refused(refusal, deadline)
    used = _used(kinds, tables)
    capacity = Capacity(problem, kinds, tables)
    carried = capacity.carried()
    if carried is None:
        refusal, proven = refuse_rates(problem, capacity, deadline)
        return _refused(refusal, deadline, "infeasible" if proven else "heuristic")
    bound = capacity.bound(carried, deadline)
    slots = _slots(problem, used)
    claim = Claim(
        bound=bound,
        stopped=_stopped(tables, carried, bound, deadline),
        binding=_binding(problem, offered, used, carried, _scarce(kinds, carried), tables),
        runtime_s=deadline.spent_s,
    )
    plan = written(problem, slots, _deployments(problem, tables, carried), claim)
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s)


def _check(problem: Problem) -> None:
    if not any(node.devices for node in problem.cluster.nodes):
        raise DocumentError("cluster: no node has a device; add some under `devices`")
    if problem.options.objective not in ("max-min", "throughput"):
        raise DocumentError(
            "planner malleable: every request may use any slot, so that all devices are used and"
            f" paid for; it knows the objectives max-min and throughput, not"
            f" {problem.options.objective}"
        )
    for demand in problem.demands:
        if dimensions := problem.profiles[demand.model].dimensions:
            raise DocumentError(
                f"planner malleable: model {demand.model!r} has several sizes"
                f" ({', '.join(dimensions)}), and depths are planned for one; profile it at one"
            )


def _table(
    problem: Problem, demand: Demand, kinds: dict[SlotKind, int], deadline: Deadline
) -> DepthTable:
    chain, asked = chain_of(problem, demand, kinds), problem.options.max_depth
    if asked is not None:
        _check_depth(demand.model, chain, asked)
    return depth_table(chain, asked or MAX_DEPTH, problem.options.partition, deadline)


def _check_depth(model: str, chain: DepthChain, asked: int) -> None:
    for what, there in (("blocks", chain.block_count), ("slots", chain.slot_count)):
        if asked > there:
            raise DocumentError(
                f"options: a depth of {asked} is beyond what model {model!r} can have\n"
                f"  needs  {asked} {what}, one for each stage\n"
                f"  has    {there}\n"
                f"  try    --max-depth {there}"
                + (", or a profile of more blocks" if what == "blocks" else ", or more devices")
            )


def _used(kinds: dict[SlotKind, int], tables: Sequence[DepthTable]) -> dict[SlotKind, int]:
    """Those that some depth of some model uses, and how many there are."""
    named = {
        table.chain.kinds[kind] for table in tables for cut in table.cuts for kind in cut.kinds
    }
    return {kind: count for kind, count in kinds.items() if kind in named}


def _stopped(
    tables: Sequence[DepthTable], carried: Carried, bound: float, deadline: Deadline
) -> Stopped:
    if all(table.proven for table in tables) and bound - carried.value <= (
        OPTIMAL_GAP * carried.value
    ):
        return "optimal"
    return "time-limit" if deadline.passed else "heuristic"


def _scarce(kinds: dict[SlotKind, int], carried: Carried) -> dict[SlotKind, int]:
    """Those whose time has a price: more of them would carry more."""
    priced = zip(kinds.items(), carried.prices, strict=True)
    return {kind: count for (kind, count), price in priced if price > 0}


def _binding(
    problem: Problem,
    offered: dict[SlotKind, int],
    used: dict[SlotKind, int],
    carried: Carried,
    scarce: dict[SlotKind, int],
    tables: Sequence[DepthTable],
) -> str:
    counts = ", ".join(f"{count} of {kind.device!r}" for kind, count in scarce.items())
    parts = [f"slots: at that load these are held all the time ({counts})"]
    parts += [
        f"those of {kind.device!r} are not: depths that use them hold others too"
        for kind in used
        if kind not in scarce
    ]
    parts += [
        f"{demand.model!r} gets nothing, as requests of others hold slots for less: a rate_rps, or"
        " the objective max-min, gives it some"
        for demand, rate_rps in zip(problem.demands, carried.rates_rps, strict=True)
        if rate_rps < LEAST_RATE_RPS
    ]
    if problem.options.partition == "shisha":
        parts.append("cuts are Shisha's, not the best")
    elif not all(table.proven for table in tables):
        parts.append("time ran out before every cut was proven the best of its depth")
    parts += [
        f"no slots on {kind.device!r}: {_why_unused(problem, kind)}"
        for kind in offered
        if kind not in used
    ]
    parts += [
        f"requests of {model!r} with more than {fitting:,} items (of at most {most:,}) miss their"
        " SLO even alone"
        for model, fitting, most in beyond_slo(problem, tables)
    ]
    return "; ".join(parts)


def _why_unused(problem: Problem, kind: SlotKind) -> str:
    return "no depth needs one" if holds(problem, kind) else "it does not hold all weights"


def _slots(problem: Problem, kinds: dict[SlotKind, int]) -> tuple[Slot, ...]:
    """All slots of these kinds, by node, device type, device and position."""
    return tuple(
        Slot(
            name=f"{node.name}/{kind.device}-{index}" + ("" if parts == 1 else f"/{position}"),
            node=node.name,
            device=kind.device,
            device_index=index,
            share=kind.share,
            tenants=(),
        )
        for node in problem.cluster.nodes
        for kind in kinds
        for parts in [int(1 / kind.share)]
        for index in range(node.devices.get(kind.device, 0))
        for position in range(parts)
    )


def _deployments(
    problem: Problem, tables: Sequence[DepthTable], carried: Carried
) -> tuple[Deployment, ...]:
    return tuple(
        Deployment(
            model=demand.model,
            slo_us=demand.slo_us,
            budget_us=budget_us(demand.slo_us, problem.options.margin_of(demand.model)),
            pipelines=(),
            throughput_rps=rate_rps,
            depths=depth_documents(table),
            max_items=table.chain.most,
        )
        for demand, table, rate_rps in zip(problem.demands, tables, carried.rates_rps, strict=True)
    )


def _refused(refusal: str, deadline: Deadline, stopped: Stopped = "infeasible") -> PlanResult:
    return PlanResult(
        plan=None, stopped=stopped, bound=None, runtime_s=deadline.spent_s, refusal=refusal
    )
