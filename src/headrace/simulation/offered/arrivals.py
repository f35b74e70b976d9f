"""When requests arrive: by a process, a trace or a file; the simulator and `load` share these.

The same seed gives the same instants on both sides, which is what makes a simulated and a
measured run comparable request by request.
"""

import csv
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge as merge_sorted
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from headrace.catalog.regular_file import open_regular
from headrace.domain.base import is_name
from headrace.domain.errors import DocumentError
from headrace.simulation.offered.processes import (
    MAX_ARRIVALS,
    Process,
    is_generated,
    poisson_us,
    process_named,
    uniform_us,
)
from headrace.simulation.offered.traces import COUNTS_BELOW, read_trace

MAX_FILE_BYTES = 1 << 30
MAX_LINE = 1 << 16
"""Characters; what is no file of lines ends here instead of filling the memory."""
EVENT_LOG = '{"schema":"headrace.events/'
"""What an event log begins with."""
COLUMNS = ("at_us", "at_s", "model", "timeout_ms", "priority", "sizes", "items")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request to send. `at_us` counts from the start of the run."""

    at_us: int
    model: str
    timeout_us: int | None = None
    """The request's own SLO; None: the model's."""
    priority: int = 0
    """Smaller is served first."""
    sizes: tuple[int, ...] = ()
    """Of its model's dynamic dimensions; none: drawn where the model has any (`sizes`)."""
    items: int = 0
    """With a malleable plan: how many it has; 0: drawn (`items`)."""


def poisson(
    model: str, rate_rps: float, duration_s: float, rng: np.random.Generator
) -> list[Arrival]:
    """A Poisson stream of one model; see `poisson_us`."""
    return _stream(model, poisson_us(rate_rps, duration_s, rng))


def uniform(model: str, rate_rps: float, duration_s: float) -> list[Arrival]:
    """A stream of one model at equal gaps; see `uniform_us`."""
    return _stream(model, uniform_us(rate_rps, duration_s))


def merge(streams: Sequence[Sequence[Arrival]]) -> list[Arrival]:
    """All streams in one, by time; ties go to the earlier stream."""
    return list(merge_sorted(*streams, key=lambda arrival: arrival.at_us))


def stream_rng(seed: int, model: str) -> np.random.Generator:
    """The generator of one model's stream.

    It depends on the name, not on the position: `headrace load` for one model of several sends
    at the very instants at which `headrace simulate` let that model's requests arrive.
    """
    return np.random.default_rng([seed, zlib.crc32(model.encode())])


def split_rate(total_rps: float, weights: Mapping[str, float]) -> dict[str, float]:
    """A total rate shared out in proportion to the models' weights.

    >>> split_rate(30.0, {"a": 2.0, "b": 1.0})
    {'a': 20.0, 'b': 10.0}
    """
    whole = sum(weights.values())
    return {model: total_rps * weight / whole for model, weight in weights.items()}


def arrivals_for(
    source: str, rates_rps: Mapping[str, float], duration_s: float, seed: int
) -> list[Arrival]:
    """Arrivals as the command line names them.

    Args:
        source: a process ("poisson", "uniform", "gamma:2", "mmpp:2"; see `processes`), the path
            of a public trace (see `traces`) or of a list of arrivals (see `from_file`).
        rates_rps: model -> requests per second. A file brings its own rate: its instants are
            stretched evenly so that the total becomes the sum of these rates, unless all are 0.
            A trace gives every model a stream of its own, each from another place in it.
        duration_s: arrivals at or after it are left out.

    Raises:
        DocumentError: the file is malformed, names another model, or the run is too large.
    """
    if is_generated(source):
        return _streams(process_named(source), rates_rps, duration_s, seed)
    total_rps = sum(rates_rps.values())
    trace = read_trace(Path(source))
    if trace is not None:
        if total_rps == 0:
            rates_rps = dict.fromkeys(rates_rps, trace.own_rate_rps / len(rates_rps))
            total_rps = trace.own_rate_rps
        if math.isinf(duration_s):
            duration_s = trace.span_s(total_rps)
        return _streams(trace, rates_rps, duration_s, seed)
    arrivals = from_file(Path(source), tuple(rates_rps))
    if total_rps > 0:
        arrivals = rescaled(arrivals, total_rps)
    return [arrival for arrival in arrivals if arrival.at_us < duration_s * 1e6]


def rescaled(arrivals: Sequence[Arrival], rate_rps: float) -> list[Arrival]:
    """The same pattern with time stretched or squeezed evenly to this mean rate.

    The mean rate of N arrivals is (N - 1) / (last - first).

    Raises:
        DocumentError: fewer than two instants differ, so that there is no rate to scale.
    """
    spread_us = arrivals[-1].at_us - arrivals[0].at_us if arrivals else 0
    if spread_us == 0:
        raise DocumentError("arrivals: a rate needs at least two different instants")
    factor = (len(arrivals) - 1) * 1e6 / spread_us / rate_rps
    return [replace(arrival, at_us=round(arrival.at_us * factor)) for arrival in arrivals]


def from_file(path: Path, models: Sequence[str]) -> list[Arrival]:
    """Read arrivals from a file.

    Either one instant per line, in seconds, or comma-separated columns under a header line of
    `at_us` or `at_s`, and optionally `model`, `timeout_ms`, `priority`, `sizes` (64, or 224x320)
    and `items`. Instants must not fall. Empty lines and lines that start with `#` are skipped.

    Args:
        models: the models that the run knows; a line without a model means the only one.

    Raises:
        DocumentError: names the file, the line, what was expected and what was found.
    """
    try:
        opened = open_regular(path, MAX_FILE_BYTES)
        with TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
            return list(_parsed(_lines(file, path), path, models))
    except OSError as error:
        raise DocumentError(
            f"{path}: cannot read arrivals: {error.strerror};"
            " give `poisson`, `uniform`, `gamma`, `mmpp` or the path of a file"
        ) from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: not a text file: {error}") from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if line.startswith(EVENT_LOG):
            raise DocumentError(
                f"{path}: is an event log, not a list of arrivals\n"
                "  try       `headrace simulate --times` for what its batches took; for its"
                " arrivals, a file with the header `at_us,model` and a line for each of its rows"
                ' that begin with "arrived": the second entry, less that of the first such row, and'
                " the name of the model whose number, from 0, is the fourth entry; sorted by time"
            )
        if len(line) == MAX_LINE:
            raise DocumentError(f"{path}: has a line of more than {MAX_LINE} characters")
        yield line


def _parsed(lines: Iterator[str], path: Path, models: Sequence[str]) -> Iterator[Arrival]:
    columns: tuple[str, ...] | None = None
    plain = False
    previous_us, count = 0, 0
    for number, text in enumerate(lines, start=1):
        where = f"{path}:{number}"
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        cells = _cells(text, where)
        if columns is None:
            columns = _header(cells, where)
            if columns is not None:
                continue
            columns, plain = ("at_s",), True
        if len(cells) != len(columns):
            raise DocumentError(f"{where}: expected {len(columns)} columns, got {len(cells)}")
        arrival = _arrival(dict(zip(columns, cells, strict=True)), models, where)
        if arrival.at_us < previous_us:
            whole = plain and not (arrival.at_us % 1_000_000 or previous_us % 1_000_000)
            raise DocumentError(
                f"{where}: {arrival.at_us} us lies before the {previous_us} us of the line above;"
                " sort the file by time"
                + (f"; above requests per second, add a line `{COUNTS_BELOW}`" if whole else "")
            )
        previous_us, count = arrival.at_us, count + 1
        if count > MAX_ARRIVALS:
            raise DocumentError(f"{where}: more than {MAX_ARRIVALS} arrivals")
        yield arrival


def _cells(text: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise DocumentError(f"{where}: not comma-separated values: {error}") from error


def _header(cells: list[str], where: str) -> tuple[str, ...] | None:
    """The column names, or None where the first line already holds a number."""
    try:
        float(cells[0])
        return None
    except ValueError:
        pass
    unknown = [cell for cell in cells if cell not in COLUMNS]
    if unknown or len(set(cells)) != len(cells) or ("at_us" in cells) == ("at_s" in cells):
        raise DocumentError(
            f"{where}: expected a header of `at_us` or `at_s` and optionally model, timeout_ms,"
            " priority, sizes, items, each once, or a plain number of seconds, or"
            f" `{COUNTS_BELOW}` alone on the first line; got {','.join(cells)!r}"
        )
    return tuple(cells)


def _arrival(cells: Mapping[str, str], models: Sequence[str], where: str) -> Arrival:
    if "at_us" in cells:
        at_us = _integer(cells["at_us"], "at_us", where, minimum=0)
    else:
        at_us = round(_number(cells["at_s"], "at_s", where) * 1e6)
    model = cells.get("model", "")
    if not model and len(models) == 1:
        model = models[0]
    if not model:
        named = "a name in every line" if "model" in cells else "a header `at_s,model`, and names"
        raise DocumentError(
            f"{where}: says not of which model, and there are {', '.join(models)}\n"
            f"  try       {named}; or all for one of them, with --model {models[0]}"
        )
    if not is_name(model) or model not in models:
        raise DocumentError(f"{where}: model {model!r} is not one of {', '.join(models)}")
    timeout_us = None
    if cells.get("timeout_ms"):
        timeout_us = round(_number(cells["timeout_ms"], "timeout_ms", where) * 1000)
        if timeout_us < 1:
            raise DocumentError(f"{where}: timeout_ms must be positive")
    priority = _integer(cells.get("priority") or "0", "priority", where, minimum=0)
    sizes = tuple(
        _integer(text, "sizes", where, minimum=1)
        for text in cells.get("sizes", "").split("x")
        if text
    )
    items = _integer(cells["items"], "items", where, minimum=1) if cells.get("items") else 0
    return Arrival(
        at_us=at_us,
        model=model,
        timeout_us=timeout_us,
        priority=priority,
        sizes=sizes,
        items=items,
    )


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9:
        raise DocumentError(f"{where}: {column}: expected a number in [0, 1e9), got {text[:40]!r}")
    return value


def _integer(text: str, column: str, where: str, *, minimum: int) -> int:
    try:
        value = int(text[:40])
    except ValueError:
        value = minimum - 1
    if not minimum <= value < 1 << 60:
        raise DocumentError(
            f"{where}: {column}: expected a whole number from {minimum}, got {text[:40]!r}"
        )
    return value


def _streams(
    process: Process, rates_rps: Mapping[str, float], duration_s: float, seed: int
) -> list[Arrival]:
    return merge(
        [
            _stream(model, process(rate, duration_s, stream_rng(seed, model)))
            for model, rate in rates_rps.items()
        ]
    )


def _stream(model: str, instants: npt.NDArray[np.int64]) -> list[Arrival]:
    return [Arrival(at_us=at_us, model=model) for at_us in instants.tolist()]
