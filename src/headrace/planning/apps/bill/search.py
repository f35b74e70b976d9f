"""The cheapest whole devices of any number of modules: proven where they are few."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.planning.apps.bill.bound import least_bill
from headrace.planning.apps.bill.budgets import SAME, BillSearch
from headrace.planning.apps.bill.case import BillCase, ModuleBill, bill_of
from headrace.planning.common.deadline import Deadline

MODULES_MAX = 9
"""That are searched together: sets of them are listed. Apps beyond are searched in bundles."""

TENANTS_MAX = 4
"""Of a slot, where modules are many and large."""

FEW = 6
"""So many modules may all share one slot, whatever their load."""

SMALL = 2.0
"""So may `MODULES_MAX`, if all of them take less of their fastest devices than this."""

BOXES_MAX = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastBill:
    """What was found for all apps together."""

    modules: tuple[ModuleBill, ...] | None
    """None: nothing below the price that was to be beaten."""
    bill: float
    bound: float
    """No plan of the form of decision 0044 is cheaper; infinite with nothing found: there is
    none."""
    proven: bool


def least_devices_bill(
    case: BillCase, most: float, limit: Deadline, *, sharing: bool = True
) -> LeastBill:
    """Search all modules together, or bundle by bundle where they are many.

    Args:
        most: only what costs less is of interest.
        sharing: False: every device has one module.
    """
    allowed = min(len(case), case.tenants_max or len(case)) if sharing else 1
    tenants = min(allowed, _tenants_max(case))
    if len(case) <= MODULES_MAX:
        floor = least_bill(case, limit.left_s)
        found = BillSearch(case, most, tenants).run(floor, BOXES_MAX, limit)
        # With fewer tenants or requests than there may be, the relaxation is what is proven.
        is_all = found.is_all and tenants == allowed
        bound = max(floor, found.bound if is_all else 0.0)
        return LeastBill(
            modules=found.modules,
            bill=found.bill,
            bound=min(bound, found.bill),
            proven=bound >= found.bill * (1 - SAME),
        )
    modules: list[ModuleBill] = []
    slots = 0
    for bundle in _bundles(case):
        if len(bundle) > MODULES_MAX:
            return LeastBill(
                modules=None, bill=most, bound=least_bill(case, limit.left_s), proven=False
            )
        found = BillSearch(bundle, most, tenants).run(0.0, BOXES_MAX, limit)
        if found.modules is None:
            return LeastBill(
                modules=None, bill=most, bound=least_bill(case, limit.left_s), proven=False
            )
        modules += [module.moved(slots) for module in found.modules]
        slots += len(found.modules)
    bill, bound = bill_of(modules), least_bill(case, limit.left_s)
    if bill >= most * (1 - SAME):
        return LeastBill(modules=None, bill=most, bound=bound, proven=False)
    return LeastBill(
        modules=tuple(modules), bill=bill, bound=bound, proven=bound >= bill * (1 - SAME)
    )


def _tenants_max(case: BillCase) -> int:
    """All modules where they are few, or so small that there are few ways to share."""
    tables = case.tables
    load = float((tables.load_rps * tables.device_s.min(axis=1)).sum())
    few = len(case) <= FEW or (len(case) <= MODULES_MAX and load <= SMALL)
    return len(case) if few else TENANTS_MAX


def _bundles(case: BillCase) -> Iterator[BillCase]:
    """Apps in their order, as many at a time as may be searched together."""
    first = 0
    while first < len(case.apps):
        end, modules = first + 1, len(case.apps[first].modules)
        while end < len(case.apps):
            modules += len(case.apps[end].modules)
            if modules > MODULES_MAX:
                break
            end += 1
        yield case.only(first, end)
        first = end
