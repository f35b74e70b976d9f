"""Ways to cut a model into stages that share devices, with the least that each can take.

A way is: where the blocks are cut, the device type of each stage, one batch size b, and n equal
pipelines, each with an n-th of the rate. A stage is one tenant of one slot whose duty cycle carries
that part, D <= b n / rate, so that a pipeline's pools are one slot each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise, product

from msgspec.structs import replace as changed

from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Demand
from headrace.planning.common.candidates import NEVER_US
from headrace.planning.common.deadline import Deadline
from headrace.planning.together.steps import Costs, Place, Step, StepChain, model_budget_us

PIPELINES_MAX = 4
"""Equal pipelines of one model."""

CUTS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A model as one or several chains."""

    chains: tuple[StepChain, ...]
    least_price: float
    """Of fractions of devices."""
    transfers_us: tuple[int, ...] = ()
    """Of a batch, from each stage but the last to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Stages of a model, and what its tensors take between them."""

    steps: tuple[Step, ...]
    transfers_us: int


def ways_to_cut(costs: Costs, demand: Demand, deadline: Deadline, *, max_stages: int) -> list[Way]:
    """All that may keep the SLO, cheapest first.

    Raises:
        OutOfTime: the deadline passed before all were looked at.
        DocumentError: there are more than CUTS_MAX.
    """
    blocks = costs.tables(demand.model).block_count
    found: list[Way] = []
    for number, places in enumerate(_places(blocks, costs.devices, max_stages)):
        if number > CUTS_MAX:
            raise DocumentError(
                f"model {demand.model!r}: more than {CUTS_MAX:,} ways to cut its {blocks} blocks"
                f" into up to {max_stages} stages; lower max_stages, or profile fewer blocks"
            )
        deadline.check()
        if _may_be_in_time(costs, demand, places):
            found += _ways(costs, demand, places)
    return cheapest_first(found)


def cheapest_first(ways: Iterable[Way]) -> list[Way]:
    """Of ways that take as much, but for rounding, that with the fewest pipelines first."""
    return sorted(ways, key=lambda way: (float(f"{way.least_price:.9g}"), len(way.chains)))


def fewest_requests(costs: Costs, demand: Demand, *, max_stages: int) -> Iterator[Cut]:
    """All ways with batches of 1, however few requests there are, up to CUTS_MAX."""
    few = changed(demand, rate_rps=LEAST_RATE_RPS)
    blocks = costs.tables(demand.model).block_count
    for places in islice(_places(blocks, costs.devices, max_stages), CUTS_MAX):
        transfers = (
            costs.transfer_us(demand.model, 1, one, after) for one, after in pairwise(places)
        )
        yield Cut(steps=_chain(few, places, 1, 1, 0, 0).steps, transfers_us=sum(transfers))


def _places(blocks: int, devices: Sequence[str], max_stages: int) -> Iterator[tuple[Place, ...]]:
    for stages in range(2, min(max_stages, blocks) + 1):
        for cuts in combinations(range(1, blocks), stages - 1):
            ranges = list(zip((0, *cuts), (*cuts, blocks), strict=True))
            for types in product(devices, repeat=stages):
                yield tuple((a, b, kind) for (a, b), kind in zip(ranges, types, strict=True))


def _may_be_in_time(costs: Costs, demand: Demand, places: tuple[Place, ...]) -> bool:
    """Whether the stages would be with free transfers and few requests, each in the batches that
    suit it best: no batch size and no number of pipelines takes less."""
    least_us = (
        costs.least_us(
            Step(
                key=demand.model,
                model=demand.model,
                rate_rps=LEAST_RATE_RPS,
                blocks=(first, end),
                device=device,
            )
        )
        for first, end, device in places
    )
    return sum(least_us) <= min(model_budget_us(costs.problem, demand), NEVER_US - 1)


def _ways(costs: Costs, demand: Demand, places: tuple[Place, ...]) -> Iterator[Way]:
    tables = costs.tables(demand.model)
    for batch in range(1, len(tables.p99_us) + 1):
        transfers = tuple(
            costs.transfer_us(demand.model, batch, one, after) for one, after in pairwise(places)
        )
        budget_us = model_budget_us(costs.problem, demand) - sum(transfers)
        for pipelines in range(1, PIPELINES_MAX + 1):
            if pipelines > 1 and (demand.rate_rps or 0.0) < pipelines * LEAST_RATE_RPS:
                break
            first = _chain(demand, places, batch, pipelines, 0, budget_us)
            least_us = [costs.least_us(step) for step in first.steps]
            if sum(least_us) > min(budget_us, NEVER_US - 1):
                continue
            price = sum(
                costs.least_price(step, budget_us - sum(least_us) + own)
                for step, own in zip(first.steps, least_us, strict=True)
            )
            others = (
                _chain(demand, places, batch, pipelines, number, budget_us)
                for number in range(1, pipelines)
            )
            yield Way(
                chains=(first, *others), least_price=pipelines * price, transfers_us=transfers
            )


def _chain(
    demand: Demand,
    places: tuple[Place, ...],
    batch: int,
    pipelines: int,
    number: int,
    budget_us: int,
) -> StepChain:
    steps = tuple(
        Step(
            key=f"{demand.model}.{number}.{stage}",
            model=demand.model,
            rate_rps=(demand.rate_rps or 0.0) / pipelines,
            blocks=(first, end),
            device=device,
            batch_size=batch,
        )
        for stage, (first, end, device) in enumerate(places)
    )
    before = tuple((stage - 1,) if stage else () for stage in range(len(places)))
    return StepChain(name=demand.model, steps=steps, before=before, budget_us=budget_us)
