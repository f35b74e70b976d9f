"""What more of a device buys a model: latency and throughput over its share, per batch size.

Pure, from whatever (share, batch size) times a profile has. The knee is where a larger share begins
to buy little throughput (gpu-lets, section 4.3; `headrace.knee`).
"""

from fractions import Fraction

from headrace.domain.base import Record
from headrace.domain.profile import Profile
from headrace.knee import knee

STILL_PAYS = 0.75
"""Throughput that each further part of the device adds, as a fraction of what each part up to there
did; above it, a bend is how timings waver."""


class SharePoint(Record, frozen=True, kw_only=True):
    """A whole model on one part of a device, at one batch size."""

    share: Fraction
    p50_us: int
    p99_us: int
    throughput_rps: float
    """Of one slot that is never idle: batch / p50."""


class ShareCurve(Record, frozen=True, kw_only=True):
    """All shares of one device type that were profiled at this batch size, ascending."""

    batch_size: int
    points: tuple[SharePoint, ...]
    knee: int | None
    """Index of the share behind which more buys least; None: fewer than three shares, or the whole
    way up buys alike."""


def share_curves(profile: Profile, device: str) -> tuple[ShareCurve, ...]:
    """One curve per batch size, from 1 on; of a model of several sizes its largest."""
    shares = sorted({times.share for times in profile.block_times if times.device == device})
    most = max((profile.max_batch(device, share) for share in shares), default=0)
    curves = []
    for size in range(1, most + 1):
        known = [share for share in shares if profile.max_batch(device, share) >= size]
        points = tuple(_point(profile, device, share, size) for share in known)
        curves.append(ShareCurve(batch_size=size, points=points, knee=_knee(points)))
    return tuple(curves)


def whole_times(
    profile: Profile, device: str, share: Fraction
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(p50, p99) of the whole model per batch size, microseconds: measured whole where it was, the
    sum of its blocks elsewhere; empty where this part was not profiled."""
    whole = profile.measured_stage(device, share, 0, len(profile.blocks))
    if whole is not None:
        return whole.p50_us, whole.p99_us
    times = profile.times(device, share)
    if times is None:
        return (), ()
    p50, p99 = (tuple(map(sum, zip(*rows, strict=True))) for rows in (times.p50_us, times.p99_us))
    return p50, p99


def _point(profile: Profile, device: str, share: Fraction, size: int) -> SharePoint:
    p50, p99 = (row[size - 1] for row in whole_times(profile, device, share))
    return SharePoint(share=share, p50_us=p50, p99_us=p99, throughput_rps=size * 1e6 / p50)


def _knee(points: tuple[SharePoint, ...]) -> int | None:
    if len(points) < 3:
        return None
    found = knee([(float(point.share), point.throughput_rps) for point in points])
    here, most = points[found], points[-1]
    if here is most:
        return None
    before = here.throughput_rps / float(here.share)
    beyond = (most.throughput_rps - here.throughput_rps) / float(most.share - here.share)
    return found if beyond < STILL_PAYS * before else None
