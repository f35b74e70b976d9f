"""Does a plan of apps hold: modules, machines and their load, worst cases, costs.

The rules are Harpagon's (sections III.A to III.C), restated in code of its own. A module's entries
k = 1..K are its pipelines in the plan's order: n_k machines with batch size b_k, duration d_k
(p99, of the batch of at most b_k that takes longest), throughput t_k of one machine and price p_k
(of the device x share).

rank        t_k / p_k falls with k (throughput-cost dispatch, III.B)
load        entry k carries n_k t_k, shared evenly by ceil(n_k) machines; n_k is whole but for the
            last entry, whose machines may have less load than they could take
remaining   w_k = sum over j >= k of n_j t_j: its load and that of all behind it
worst case  d_k + collecting a batch, by the plan's reading of the policy: b_k / w_k (remaining,
            Theorem 1); d_k on whole machines, else b_k / (n_k t_k) (twice); b_k over what at most
            two of its machines take (pair, Table III); for b_k = 1 at most d_k. The module's is the
            largest, at most its budget; the app's is the longest path over its modules, and budgets
            along every path fit too. All apps are read alike: one policy runs them
at once     all calls of one request, run by idle machines, fit the SLO (`at_once`)
budget      SLO x (1 - margin), less the longest path of code before a module and gateway x calls
            of it, less the code after all
gateway     rate x calls x gateway, summed over modules, is at most a second per second
dummy       what all machines carry beyond the module's rate
cost        sum of n_k p_k, in proportion to load
turns       an entry on a slot with duty cycle D (decision 0044) is one batch in every D: it carries
            b / D on each slot, takes d / D of it, and ends within D + d. One that *follows* has its
            turn behind those of all modules that its own waits for, in the same cycle and the
            order of the slot's tenants, and ends within what lies between the last of these and
            its own end; they and it must carry all of their modules' load there, and have no
            machine that takes some of it elsewhere. Turns are taken
            as long as d and the gateway's part (where it has the same cores), over
            max_utilisation, and before a module's first turn lies what its app's code and the
            gateway take. All of them sum to at most D. A module's turns are on one slot and stand
            behind its whole machines, whose w counts them; rank is for machines, and where the bill
            is of fractions
together    apps read as `turns` stand beside models, which keep what models promise: every entry
            is a turn, none follows, so that no order within the cycle matters
objective   read as `turns`, that of the options; else of bill `fraction` the cost in proportion to
            load, of `devices` the price of all devices

Entries are walked from the last, so that w_k is a running sum. Cost: linear in the plan.
"""

from collections import Counter
from fractions import Fraction
from math import ceil, floor

from headrace.domain.app import App
from headrace.domain.plan import AppClaim, Deployment, MachineLoad, Pipeline, Reading
from headrace.verify.at_once import check_at_once
from headrace.verify.case import Case, at_most, same
from headrace.verify.claims import (
    check_cost,
    check_modules_figures,
    check_objective,
    check_rates,
    check_stated,
)
from headrace.verify.figures import US_PER_S, check_figures
from headrace.verify.resources import check_resources
from headrace.verify.rounds import check_rounds, check_turn, has_turns
from headrace.verify.structure import check_demands, check_profiles, check_shape

NEVER_US = 1 << 50
ROUNDING_US = 1
"""Collecting is rounded up; a sum of rates in another order may tip it by one."""


def check_apps(case: Case) -> None:
    """All checks of a plan of apps."""
    models = {module.model for claim in case.plan.apps for module in claim.app.modules}
    check_demands(case)
    check_profiles(case, sorted(models | case.demands.keys()))
    check_shape(case)
    throughputs = check_figures(case)
    check_resources(case, throughputs)
    _check_deployed(case)
    _check_readings(case)
    _check_gateway(case)
    total = sum(_check_app(case, claim) for claim in case.plan.apps)
    if all(claim.reading == "turns" for claim in case.plan.apps):
        check_modules_figures(case)
        check_rates(case, throughputs)
        check_objective(case, throughputs, check_cost(case))
    else:
        _check_apps_alone(case, total)
    check_stated(case)


def _check_apps_alone(case: Case, total: float) -> None:
    """Rounds, and the objective. `total`: cost of all apps in proportion to load."""
    check_rounds(case)
    what = "cost in proportion to load"
    if case.plan.options.bill == "devices":
        total, what = case.plan.cost_per_hour or 0.0, "price of the devices used"
    case.expect("objective", "plan", what, total, case.plan.objective)
    if case.plan.demands or case.plan.options.objective != "least-cost":
        what = "a plan of apps is for least cost, and of apps only"
        stated = f"{case.plan.options.objective}, {len(case.plan.demands)} demands"
        case.report("objective", "plan", what, "least-cost, no demands", stated)
    check_cost(case)


def _check_deployed(case: Case) -> None:
    deployed = Counter((d.app, d.module) for d in case.plan.deployments if d.app)
    asked = {(claim.app.name, m.name) for claim in case.plan.apps for m in claim.app.modules}
    for app, module in sorted(asked | set(deployed), key=str):
        wanted, found = int((app, module) in asked), deployed[app, module]
        case.expect("apps", f"{app}/{module}", "times that the module is deployed", wanted, found)
    names = Counter(p.name for d in case.plan.deployments if d.app for p in d.pipelines)
    for name, count in names.items():
        if count > 1:
            case.report("names", name, "pipelines of this name", 1, count)


def _check_readings(case: Case) -> None:
    """One policy runs all apps, and keeps the worst cases of one reading."""
    readings = sorted({claim.reading for claim in case.plan.apps})
    if len(readings) > 1:
        what = "readings of a full batch's worst case, of all apps"
        case.report("apps", "plan", what, "one", ", ".join(readings))


def _check_app(case: Case, claim: AppClaim) -> float:
    """Returns the app's recomputed cost."""
    app, name = claim.app, claim.app.name
    margin = Fraction(str(case.plan.options.margin_of(name)))
    budget_us = max(0, floor(app.slo_us * (1 - margin)) - _overhead_us(case, app))
    case.expect("budget", name, "budget (us)", budget_us, claim.budget_us)
    worst: dict[str, int] = {}
    budgets: dict[str, int] = {}
    cost = 0.0
    for deployment in case.plan.deployments:
        if deployment.app == name and deployment.module in {m.name for m in app.modules}:
            module = str(deployment.module)
            worst[module] = _check_module(case, app, deployment, claim.reading)
            budgets[module] = deployment.budget_us
            cost += deployment.cost_per_hour or 0.0
    case.expect("cost", name, "cost of all modules", cost, claim.cost_per_hour)
    if len(worst) == len(app.modules):
        path_us = app.longest_path_us(worst)
        case.expect("worst-case", name, "longest path (us)", path_us, claim.worst_case_us)
        for which, us in (("worst case", path_us), ("budgets", app.longest_path_us(budgets))):
            what = f"{which} (us) along the longest path exceed the app's budget"
            case.limit("worst-case", name, what, us, budget_us)
        check_at_once(case, app, max(0, app.slo_us - _overhead_us(case, app)))
    return cost


def _overhead_us(case: Case, app: App) -> int:
    """The longest path of the app's code before each module and its calls' way through the gateway,
    one after the other, and the code after all of them."""
    before_us = {}
    for module in app.modules:
        profile = case.profiles.get(module.model)
        gateway_us = profile.gateway_us if profile else 0
        before_us[module.name] = module.code_us + ceil(gateway_us * module.fan_out.mean)
    return app.longest_path_us(before_us) + app.code_us


def _check_gateway(case: Case) -> None:
    """One event loop passes all calls of all modules, and what models are asked for."""
    needed_us = 0.0
    for demand in case.plan.demands:
        alone = case.profiles.get(demand.model)
        needed_us += (demand.rate_rps or 0.0) * (alone.gateway_us if alone else 0)
    for claim in case.plan.apps:
        for module in claim.app.modules:
            profile = case.profiles.get(module.model)
            if profile is not None:
                needed_us += claim.app.rate_rps * module.fan_out.mean * profile.gateway_us
    if not at_most(needed_us, US_PER_S):
        case.report(
            "gateway",
            "plan",
            "time of the gateway (us of every second) for all calls",
            needed=needed_us,
            available=US_PER_S,
        )


def _check_module(case: Case, app: App, deployment: Deployment, reading: Reading) -> int:
    """Returns the module's recomputed worst case."""
    where = f"{app.name}/{deployment.module}"
    module = app.module(str(deployment.module))
    rate_rps = app.rate_rps * module.fan_out.mean
    if deployment.model != module.model or deployment.slo_us != app.slo_us:
        needed, stated = (
            f"{one}, {us}"
            for one, us in ((module.model, app.slo_us), (deployment.model, deployment.slo_us))
        )
        case.report("apps", where, "model and SLO (us) of the module", needed, stated)
    case.expect("apps", where, "rate (rps)", rate_rps, deployment.rate_rps or 0.0)
    loads = [pipeline.load for pipeline in deployment.pipelines]
    if not loads or any(load is None for load in loads):
        case.report("load", where, "entries with a load", "all, and one", loads)
        return 0
    remaining, cost, worst_us, ratio = 0.0, 0.0, 0, 0.0
    for index in range(len(loads) - 1, -1, -1):
        pipeline, load = deployment.pipelines[index], loads[index]
        assert load is not None
        remaining += load.rate_rps
        last = index + 1 == len(loads)
        own_us, price, entry_ratio = _check_entry(case, pipeline, load, remaining, reading, last)
        worst_us, cost = max(worst_us, own_us), cost + price
        what = "throughput / price is below that of an entry behind it"
        if case.plan.options.bill == "fraction":
            case.limit("load", f"{where}/{pipeline.name}", what, ratio, entry_ratio)
        ratio = entry_ratio
    extra = remaining - rate_rps
    dummy = extra if extra > 1e-9 * max(1.0, rate_rps) else 0.0
    case.expect("load", where, "dummy load (rps)", dummy, deployment.dummy_rps)
    options = case.plan.options
    own_room = options.module_headroom.get(f"{app.name}.{module.name}", 0.0)
    planned_rps = rate_rps * (1 + options.rate_headroom) * (1 + own_room)
    if not at_most(planned_rps, remaining * (1 + 1e-9)):
        case.report("rates", where, "rate, head-room included (rps)", planned_rps, remaining)
    case.expect("cost", where, "cost of all entries", cost, deployment.cost_per_hour or 0.0)
    case.expect("worst-case", where, "slowest entry (us)", worst_us, deployment.worst_case_us or 0)
    what = "worst case (us) exceeds the module's budget"
    case.limit("worst-case", where, what, worst_us, deployment.budget_us)
    return worst_us


def _check_entry(
    case: Case,
    pipeline: Pipeline,
    load: MachineLoad,
    remaining_rps: float,
    reading: Reading,
    last: bool,
) -> tuple[int, float, float]:
    """Returns the entry's worst case as claimed, its recomputed price, and throughput / price."""
    where = pipeline.name
    if len(pipeline.stages) != 1 or not pipeline.stages[0].pool:
        found = [len(stage.pool) for stage in pipeline.stages]
        case.report("depth", where, "slots of its stages", "one stage, with slots", found)
        return load.worst_case_us, 0.0, 0.0
    stage = pipeline.stages[0]
    slots = len(stage.pool)
    if reading == "turns" and (load.follows or not has_turns(case, pipeline)):
        has = "one that follows others" if load.follows else "a slot without a duty cycle"
        case.report("load", where, "an entry of an app beside models", "a turn of its own", has)
    if has_turns(case, pipeline):
        price = check_turn(case, pipeline, load, remaining_rps)
        return load.worst_case_us, price, 0.0
    if load.follows:
        case.report("load", where, "follows others", "a slot with a duty cycle", "none")
    whole = same(load.machines, float(round(load.machines))) and load.machines >= 1
    if not (whole or (last and load.machines > 0)) or slots != max(1, ceil(load.machines - 1e-9)):
        needed = f"a whole number but in the last entry; {slots} slots hold it"
        case.report("load", where, "machines", needed, load.machines)
    one_rps = stage.throughput_rps / slots
    case.expect("load", where, "load (rps)", load.machines * one_rps, load.rate_rps)
    case.expect("load", where, "load of a machine (rps)", load.rate_rps / slots, load.machine_rps)
    case.expect("load", where, "remaining load (rps)", remaining_rps, load.remaining_rps)
    collect_us = _collect_us(pipeline, load, remaining_rps, reading, one_rps)
    if abs(collect_us - load.collect_us) > ROUNDING_US:
        case.report("worst-case", where, "collecting (us)", collect_us, load.collect_us)
    total_us = stage.latency_us + load.collect_us
    case.expect("worst-case", where, "worst case (us)", total_us, load.worst_case_us)
    kind = case.types.get(stage.device)
    price = float(kind.price_per_hour or 0.0) * float(stage.share) if kind else 0.0
    case.expect("cost", where, "cost of its machines", load.machines * price, load.cost_per_hour)
    return load.worst_case_us, load.machines * price, one_rps / price if price else 0.0


def _collect_us(
    pipeline: Pipeline, load: MachineLoad, remaining_rps: float, reading: Reading, one_rps: float
) -> int:
    """The longest wait for a full batch (Theorem 1; Table III for the other readings)."""
    batch, duration_us = pipeline.batch_size, pipeline.stages[0].latency_us
    if reading == "twice" and load.machines >= 1:
        return duration_us
    rate_rps = remaining_rps if reading == "remaining" else min(load.machines, 2.0) * one_rps
    wait_us = NEVER_US
    if rate_rps * NEVER_US > 1e6 * batch:
        wait_us = ceil(1e6 * batch / rate_rps - 1e-3)
    return min(wait_us, duration_us) if batch == 1 else wait_us
