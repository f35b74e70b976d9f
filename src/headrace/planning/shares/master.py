"""The linear and the integer program over parts and devices: how many of which.

    columns   y_q   parts of one sort (place, tenants, batch sizes)
              x_c   devices cut and used one way (`Layout`)
              z     the multiple of all targets, of `max-min`
    rows      carried   of each model: sum of min(rate, cap) y / target  >=  1, or its floor
              counted   of each model, of `max-min`: the same  >=  z
              room      of each place and loudness: parts at least that loud, at most as many as the
                        layouts have places for
              owned     of each device type: layouts at most as many as there are devices
    goal      least sum of price x, or most z

By the prices of its rows (dual values), the linear program says of every column what it wastes: of
a part, what its room costs less what it carries is worth; of a layout, what its device costs less
what its room is worth. All are at least 0, and by duality

    goal of a plan  =  bound  +  sum of waste  (least price; of max-min: bound - ...)

so that a plan within `gap` of the bound has no column that wastes more than the gap. That is what
makes an integer program over few columns a proof about all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.solver import LinearModel, LinearSolution
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.workload import DeviceOffer, Floats, Ints, Layout, Workload

MISSING = 1e4
"""What it costs to leave a model's whole rate out, in prices of all devices together: more than
any price of it in a program that can carry it without."""

LACKING = 1e-7
"""Multiples of a target that a relaxed plan may lack by rounding."""

UNCAPPED_RPS = 1e12


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of the programs."""

    most: bool
    """Whether the largest multiple of the rates is asked for, instead of the least price."""
    cap: float
    """Multiple of each rate up to which a part's counts."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What the linear program says of a relaxed plan."""

    bound: float
    """Of its goal: no plan is better."""
    scale: float
    """Of the goal, without what is missing."""
    missing: bool
    """Even fractions of devices cannot carry the rates."""
    price: Floats
    """Shape (M,): of a request per second."""
    rent: Floats
    """Shape (P, levels + 1): of a part, by place and loudness."""
    layout_waste: Floats
    """Shape (layouts,)."""
    pool: Parts
    """Shape (Q,): the parts that the prices were found with."""
    parts: Floats
    """Shape (Q,): how many of each of them the relaxed plan has."""
    layouts: Floats
    """Shape (layouts,): how many devices of each."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A whole plan: how many of which parts and layouts."""

    parts: Parts
    """Those that are used, each as often as `count` says."""
    count: Ints
    layouts: Ints
    """Shape (layouts,): devices of each."""


class Master:
    """Programs over one workload and one set of devices."""

    def __init__(
        self,
        load: Workload,
        offers: Sequence[DeviceOffer],
        layouts: Sequence[Layout],
        places: int,
        levels: int,
    ) -> None:
        self.load, self.offers, self.layouts = load, offers, layouts
        self.places, self.levels = places, levels
        self._used = np.zeros((len(layouts), places, levels))
        for row, layout in enumerate(layouts):
            for place, loud in zip(layout.places, layout.loudness, strict=True):
                self._used[row, place, :loud] += 1
        self._device = np.array([layout.device for layout in layouts])
        self._prices = np.array([offer.price for offer in offers])
        self._counts = np.array([offer.count for offer in offers], float)

    def relaxed(self, parts: Parts, goal: Goal, *, time_limit_s: float) -> Prices | None:
        """Prices by these parts alone; None where time ran out."""
        model, rows = self._model(parts, goal, integer=False)
        found = model.solve(time_limit_s=time_limit_s, relaxed=True)
        if found.status != "optimal" or found.prices is None or found.objective is None:
            return None
        return self._priced(found, rows, parts, goal)

    def whole(
        self,
        parts: Parts,
        goal: Goal,
        *,
        layouts: np.ndarray,
        better_than: float | None,
        time_limit_s: float,
        relative_gap: float,
    ) -> tuple[Chosen | None, float | None, bool]:
        """The best plan of these parts and layouts in whole numbers.

        Args:
            layouts: shape (layouts,): which may be used.
            better_than: only plans whose goal is at least as good.

        Returns:
            The plan if one was found; a bound on all plans of these that are better than
            `better_than`, None where there is none; whether the search ended by itself.
        """
        model, rows = self._model(parts, goal, integer=True, allowed=layouts, limit=better_than)
        found = model.solve(time_limit_s=time_limit_s, relative_gap=relative_gap)
        if found.status == "infeasible":
            return None, None, True
        bound = found.bound
        if found.values is None:
            return None, bound, False
        values = np.rint(found.values).astype(np.int64)
        count = values[rows.parts]
        used = np.flatnonzero(count)
        chosen = Chosen(parts.take(used), count[used], values[rows.layouts])
        return chosen, bound, found.status == "optimal"

    def filled(
        self,
        uses: Sequence[Floats],
        *,
        taken: Ints,
        rent: Floats | None,
        price_max: float,
        time_limit_s: float,
    ) -> tuple[Ints, Ints] | None:
        """Of every model one filling, and whole devices with places for all their parts.

        Args:
            uses: of each model, shape (fillings, P): parts of each place that a filling has.
            taken: shape (P,): by other parts. Loudness is not looked at.
            rent: shape (P,): look for any devices that there are, and not for the cheapest; while
                looking, of a place that is lacking.
            price_max: of all devices.

        Returns:
            The filling of each model, shape (M,), and devices of each layout; None if none was
            found in time.
        """
        model = LinearModel(maximise=False)
        price, upper = self._prices[self._device], self._counts[self._device]
        x = model.add_columns(
            len(self.layouts), gain=price if rent is None else 0.0, upper=upper, integer=True
        )
        room = model.add_rows(self.places, upper=-taken.astype(float))
        columns = []
        for use in uses:
            one = model.add_columns(len(use), upper=1.0, integer=True)
            model.add_entries(model.add_rows(1, lower=1.0, upper=1.0), one, 1.0)
            f, p = np.nonzero(use)
            model.add_entries(room[p], one[f], use[f, p])
            columns.append(one)
        c, p = np.nonzero(self._used[:, :, 0])
        model.add_entries(room[p], x[c], -self._used[c, p, 0])
        owned = model.add_rows(len(self.offers), upper=self._counts)
        model.add_entries(owned[self._device], x, 1.0)
        if rent is not None:
            lacking = model.add_columns(self.places, gain=rent, integer=True)
            model.add_entries(room, lacking, -1.0)
        elif price_max < np.inf:
            model.add_entries(model.add_rows(1, upper=price_max), x, price)
        found = model.solve(time_limit_s=time_limit_s, relative_gap=1e-4)
        if found.values is None or (rent is not None and found.values[lacking].any()):
            return None
        which = np.array([int(found.values[one].argmax()) for one in columns])
        return which, np.rint(found.values[x]).astype(np.int64)

    def multiple(self, chosen: Chosen) -> float:
        """The largest z of which every model carries z times its target."""
        return float((self.load.have + self._carried(chosen)).min())

    def suffices(self, chosen: Chosen, multiple: float) -> bool:
        """Whether it carries so much of every target, and every floor."""
        return bool((self._carried(chosen) >= self.load.wanted(multiple) - 1e-9).all())

    def cap_rps(self, goal: Goal) -> Floats:
        """Shape (M,): the rates up to which a part's count."""
        capped: Floats = np.minimum(self.load.wanted(goal.cap) * self.load.target_rps, UNCAPPED_RPS)
        return capped

    def _carried(self, chosen: Chosen) -> Floats:
        rates: Floats = chosen.count @ chosen.parts.rates_rps(self.load.models)
        multiples: Floats = rates / self.load.target_rps
        return multiples

    def price(self, chosen: Chosen) -> float:
        return float(chosen.layouts @ self._prices[self._device])

    # -- the program ------------------------------------------------------------------------------

    def _model(
        self,
        parts: Parts,
        goal: Goal,
        *,
        integer: bool,
        allowed: np.ndarray | None = None,
        limit: float | None = None,
    ) -> tuple[LinearModel, "_Rows"]:
        models = self.load.models
        model = LinearModel(maximise=goal.most)
        price = np.zeros(len(self.layouts)) if goal.most else self._prices[self._device]
        upper = self._counts[self._device]
        if allowed is not None:
            upper = np.where(allowed, upper, 0.0)
        x = model.add_columns(len(self.layouts), gain=price, upper=upper, integer=integer)
        y = model.add_columns(len(parts.place), integer=integer)
        carried = model.add_rows(models, lower=self.load.wanted(0.0 if goal.most else 1.0))
        counted = model.add_rows(
            models if goal.most else 0, lower=-self.load.have if goal.most else 0.0
        )
        z = model.add_columns(
            1 if goal.most else 0, gain=1.0, lower=0.0 if limit is None else limit
        )
        if goal.most:
            model.add_entries(counted, z, -1.0)
        lack = np.zeros(0, np.int64)
        if not integer:
            spent = float(self._prices @ self._counts) or 1.0
            gain = -MISSING if goal.most else MISSING * spent
            lack = model.add_columns(models, gain=gain)
            model.add_entries(carried, lack, 1.0)
        room = model.add_rows(self.places * self.levels, upper=0.0)
        owned = model.add_rows(len(self.offers), upper=self._counts)
        rates = np.minimum(parts.rates_rps(models), self.cap_rps(goal)) / self.load.target_rps
        q, m = np.nonzero(rates)
        model.add_entries(carried[m], y[q], rates[q, m])
        if goal.most:
            model.add_entries(counted[m], y[q], rates[q, m])
        for level in range(1, self.levels + 1):
            loud = parts.loudness >= level
            model.add_entries(room[parts.place[loud] * self.levels + level - 1], y[loud], 1.0)
        flat = self._used.reshape(len(self.layouts), -1)
        c, r = np.nonzero(flat)
        model.add_entries(room[r], x[c], -flat[c, r])
        model.add_entries(owned[self._device], x, 1.0)
        if not goal.most and limit is not None:
            row = model.add_rows(1, upper=limit)
            model.add_entries(row, x, price)
        return model, _Rows(
            layouts=x, parts=y, carried=carried, counted=counted, lack=lack, multiple=z,
            room=room, owned=owned)  # fmt: skip

    def _priced(self, found: LinearSolution, rows: "_Rows", pool: Parts, goal: Goal) -> Prices:
        assert found.prices is not None
        assert found.objective is not None
        assert found.values is not None
        worth = np.abs(found.prices)
        rent = np.zeros((self.places, self.levels + 1))
        rent[:, 1:] = worth[rows.room].reshape(self.places, self.levels).cumsum(axis=1)
        flat = self._used.reshape(len(self.layouts), -1)
        cost_of = self._prices[self._device]
        cost = worth[rows.owned][self._device] + (0.0 if goal.most else cost_of)
        price = worth[rows.carried]
        if goal.most:
            price = price + worth[rows.counted]
        layouts = found.values[rows.layouts]
        reached = found.values[rows.multiple].sum() if goal.most else cost_of @ layouts
        return Prices(
            bound=found.objective,
            scale=max(1.0, float(reached)),
            missing=float(found.values[rows.lack].sum()) > LACKING,
            price=price / self.load.target_rps,
            rent=rent,
            layout_waste=cost - flat @ worth[rows.room],
            pool=pool,
            parts=found.values[rows.parts],
            layouts=layouts,
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the columns and rows of a program lie."""

    layouts: Ints
    parts: Ints
    carried: Ints
    counted: Ints
    lack: Ints
    multiple: Ints
    room: Ints
    owned: Ints
