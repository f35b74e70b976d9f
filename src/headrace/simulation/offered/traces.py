"""Public request traces, replayed at any rate.

MAF 2021   app,func,end_timestamp,duration     one row per invocation: gaps are kept
MAF 2019   HashOwner,…,1,2,…,1440              invocations per minute: Poisson within a minute
counts     52 55 48 …                          requests per second, blanks between: Poisson within;
                                               further lines continue the first
           rps                                 the same: a first line of only one number would be
                                               an instant, so counts may stand below this word

Files may be gzipped. MAF are the Azure Functions traces of Microsoft's public dataset.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from headrace.catalog.regular_file import open_regular
from headrace.domain.errors import DocumentError
from headrace.simulation.offered.processes import (
    MAX_ARRIVALS,
    Instants,
    expected_count,
    poisson_us,
    whole_us,
)

MAX_TRACE_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 26
MAF_2021 = ["app", "func", "end_timestamp", "duration"]
COUNTS_BELOW = "rps"
"""The first line of a file of requests per second, in lines of any length."""

_MINUTE = re.compile(r"(?:minute_)?(\d+)")
_COUNTS = re.compile(r"\s*\d+(?:[ \t]+\d+)+\s*")
_MORE_COUNTS = re.compile(r"[\s\d]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGaps:
    """Invocations one by one: their gaps, squeezed to the rate and repeated in a circle."""

    gaps: npt.NDArray[np.float64]
    """Shape (N,), with mean 1; the last one closes the circle."""
    own_rate_rps: float

    def span_s(self, rate_rps: float) -> float:
        """How long one pass takes."""
        return len(self.gaps) / rate_rps

    def __call__(self, rate_rps: float, duration_s: float, rng: np.random.Generator) -> Instants:
        """Replay from a random place in the circle."""
        count = int(expected_count(rate_rps, duration_s))
        turned = np.roll(self.gaps, -int(rng.integers(len(self.gaps))))
        # One more round than needed, since a part of the circle may be faster than its mean.
        rounds = count // len(turned) + 2
        at_s = np.concatenate([[0.0], np.cumsum(np.tile(turned, rounds))]) / rate_rps
        return whole_us(at_s[at_s < duration_s], duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCounts:
    """Requests per bin of time: a Poisson process whose rate follows them."""

    counts: npt.NDArray[np.float64]
    """Shape (N,), per bin."""
    bin_s: float

    @property
    def own_rate_rps(self) -> float:
        return float(self.counts.mean() / self.bin_s)

    def span_s(self, rate_rps: float) -> float:
        """How long one pass takes: time runs as recorded, only the rate is scaled."""
        return len(self.counts) * self.bin_s

    def __call__(self, rate_rps: float, duration_s: float, rng: np.random.Generator) -> Instants:
        """Replay from a random place, scaled so that this part of the trace has the rate.

        Recordings have holes; a place is one without an empty bin, where the trace has any.
        """
        expected_count(rate_rps, duration_s)
        of_place, of_arrivals = rng.spawn(2)
        bins = int(np.ceil(duration_s / self.bin_s))
        places = self._places(bins)
        first = int(places[of_place.integers(len(places))])
        window = np.take(self.counts, np.arange(first, first + bins), mode="wrap")
        edges_s = np.minimum(np.arange(bins + 1) * self.bin_s, duration_s)
        done = np.concatenate([[0.0], np.cumsum(window * np.diff(edges_s))])
        units_s = poisson_us(rate_rps, duration_s, of_arrivals) / 1e6
        at_s = np.interp(units_s / duration_s * done[-1], done, edges_s)
        return whole_us(at_s[at_s < duration_s], duration_s)

    def _places(self, bins: int) -> Instants:
        """Where a window of so many bins may begin."""
        around = np.take(self.counts, np.arange(len(self.counts) + bins), mode="wrap")
        full, total = (np.concatenate([[0.0], np.cumsum(x)]) for x in (around > 0, around))
        filled = full[bins:-1] - full[: -bins - 1]
        unbroken = np.flatnonzero(filled == bins)
        if len(unbroken):
            return unbroken
        # There is one: a trace has at least one request.
        return np.flatnonzero(total[bins:-1] - total[: -bins - 1] > 0)


Trace = RecordedGaps | RecordedCounts


def read_trace(path: Path) -> Trace | None:
    """Read a public trace, or None where the file is of no such format.

    Raises:
        DocumentError: it is malformed, too large, or has nothing to replay.
    """
    try:
        with _opened(path) as file:
            lines = _bounded(path, file)
            first = next(lines, "")
            cells = [cell.strip() for cell in first.split(",")]
            if cells == MAF_2021:
                return _gaps(path, _invocations(path, csv.reader(lines)))
            if len(cells) > 3 and "HashFunction" in cells:
                return _counts(path, _minutes(path, cells, csv.reader(lines)), 60.0)
            if first.strip() == COUNTS_BELOW:
                return _counts(path, _seconds(path, chain([""], lines)), 1.0)
            if _COUNTS.fullmatch(first):
                return _counts(path, _seconds(path, chain([first], lines)), 1.0)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error):
        # Not readable as text at all: whoever reads it as a list of arrivals says so better.
        return None
    return None


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    with ExitStack() as opened:
        file: IO[bytes] = opened.enter_context(open_regular(path, MAX_TRACE_BYTES))
        if path.suffix == ".gz":
            file = cast(IO[bytes], opened.enter_context(gzip.GzipFile(fileobj=file)))
        yield opened.enter_context(TextIOWrapper(file, encoding="utf-8-sig", newline=""))


def _bounded(path: Path, file: IO[str]) -> Iterator[str]:
    read = 0
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise DocumentError(f"{path}: has a line of more than {MAX_LINE_BYTES} characters")
        read += len(line)
        if read > MAX_TRACE_BYTES:
            raise DocumentError(f"{path}: a trace may have {MAX_TRACE_BYTES} bytes")
        yield line


def _invocations(path: Path, rows: Iterator[list[str]]) -> list[float]:
    instants = []
    for number, row in enumerate(rows, start=2):
        try:
            _, _, end_s, duration_s = row
            instants.append(float(end_s) - float(duration_s))
        except ValueError as error:
            raise DocumentError(f"{path}:{number}: expected {','.join(MAF_2021)}") from error
        if len(instants) > MAX_ARRIVALS:
            raise DocumentError(f"{path}:{number}: more than {MAX_ARRIVALS} invocations")
    return instants


def _minutes(path: Path, header: list[str], rows: Iterator[list[str]]) -> npt.NDArray[np.float64]:
    """Invocations of all functions together, per minute."""
    columns = [i for i, name in enumerate(header) if _MINUTE.fullmatch(name)]
    total = np.zeros(len(columns))
    for number, row in enumerate(rows, start=2):
        try:
            total += np.array([float(row[i]) for i in columns])
        except (ValueError, IndexError) as error:
            raise DocumentError(f"{path}:{number}: expected a count per minute") from error
    return total


def _seconds(path: Path, lines: Iterator[str]) -> npt.NDArray[np.float64]:
    """Requests per second, of all lines."""
    counts: list[float] = []
    for number, line in enumerate(lines, start=1):
        if not _MORE_COUNTS.fullmatch(line):
            raise DocumentError(f"{path}:{number}: expected requests per second, blanks between")
        counts += map(float, line.split())
        if len(counts) > MAX_ARRIVALS:
            raise DocumentError(f"{path}:{number}: more than {MAX_ARRIVALS} seconds")
    return np.array(counts)


def _gaps(path: Path, instants: list[float]) -> RecordedGaps:
    at_s = np.sort(np.array(instants))
    if len(at_s) < 2 or not np.isfinite(at_s).all() or at_s[-1] == at_s[0]:
        raise DocumentError(f"{path}: a replay needs at least two different instants")
    mean_s = float((at_s[-1] - at_s[0]) / (len(at_s) - 1))
    return RecordedGaps(
        gaps=np.concatenate([np.diff(at_s) / mean_s, [1.0]]), own_rate_rps=1 / mean_s
    )


def _counts(path: Path, counts: npt.NDArray[np.float64], bin_s: float) -> RecordedCounts:
    if not len(counts) or not np.isfinite(counts).all() or counts.min() < 0 or not counts.sum():
        raise DocumentError(f"{path}: has no requests to replay")
    return RecordedCounts(counts=counts, bin_s=bin_s)
