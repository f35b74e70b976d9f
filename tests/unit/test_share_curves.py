"""Latency and throughput over the share of a device, their knee, and their picture."""

from fractions import Fraction
from pathlib import Path

import pytest

from headrace.domain.errors import DocumentError
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance, StageTimes
from headrace.domain.tensors import TensorSpec
from headrace.profiling.share_curves import share_curves, whole_times
from headrace.reporting.profile_plot import plot_profile

Y = TensorSpec(name="y", dtype="float32", item_shape=(1,))
QUARTERS = [Fraction(quarter, 4) for quarter in (1, 2, 3, 4)]


def profiled(times_us: dict[Fraction, tuple[int, ...]]) -> Profile:
    """A model of one block with these p50 (and p99) per share and batch size."""
    return Profile(
        model="m",
        provenance=Provenance(kind="measured", date="2026-01-01", machine="here"),
        inputs=(Y,),
        outputs=(Y,),
        blocks=(Block(name="b", node_count=1, weights_bytes=1, cut=(Y,), cut_bytes=4),),
        block_times=tuple(
            BlockTimes(device="gpu", share=share, p50_us=(row,), p99_us=(row,))
            for share, row in times_us.items()
        ),
    )


def test_the_knee_is_where_a_larger_share_stops_to_pay() -> None:
    small, large = (4_000, 2_000, 1_900, 1_850), (40_000, 20_000, 13_400, 10_000)
    profile = profiled(dict(zip(QUARTERS, zip(small, large, strict=True), strict=True)))

    one, two = share_curves(profile, "gpu")

    assert [point.throughput_rps for point in one.points] == pytest.approx(
        [250, 500, 526.3, 540.5], 1e-3
    )
    assert one.knee == 1
    # A batch that fills the device at every share gains all the way.
    assert two.knee is None


def test_two_shares_have_no_knee_and_fewer_batch_sizes_shorten_a_curve() -> None:
    profile = profiled({QUARTERS[1]: (10,), QUARTERS[3]: (6, 9)})

    one, two = share_curves(profile, "gpu")

    assert [point.share for point in one.points] == [QUARTERS[1], QUARTERS[3]]
    assert [point.share for point in two.points] == [QUARTERS[3]]
    assert (one.knee, two.knee) == (None, None)


def test_what_was_measured_whole_stands_for_the_sum_of_blocks() -> None:
    block = Block(name="b", node_count=1, weights_bytes=1, cut=(Y,), cut_bytes=4)
    rows = ((10, 20), (30, 40))
    profile = Profile(
        model="m",
        provenance=Provenance(kind="measured", date="2026-01-01"),
        inputs=(Y,),
        outputs=(Y,),
        blocks=(block, block),
        block_times=(BlockTimes(device="gpu", share=Fraction(1), p50_us=rows, p99_us=rows),),
    )
    whole = StageTimes(
        device="gpu",
        share=Fraction(1),
        first_block=0,
        end_block=2,
        p50_us=(35, 50),
        p99_us=(36, 52),
    )

    assert whole_times(profile, "gpu", Fraction(1)) == ((40, 60), (40, 60))
    assert whole_times(profile, "gpu", Fraction(1, 2)) == ((), ())
    measured = profile.__class__(
        **{
            name: getattr(profile, name)
            for name in profile.__struct_fields__
            if name != "stage_times"
        },
        stage_times=(whole,),
    )
    assert whole_times(measured, "gpu", Fraction(1)) == ((35, 50), (36, 52))


def test_equal_profiles_give_equal_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    profile = profiled({share: (int(4_000 / share), int(6_000 / share)) for share in QUARTERS})

    for name in ("a.svg", "b.svg"):
        plot_profile(profile, "gpu", tmp_path / name)

    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in content
    plot_profile(profile, "gpu", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)

    with pytest.raises(DocumentError, match=r"pip install 'headrace\[plot\]'"):
        plot_profile(profiled({QUARTERS[3]: (5,)}), "gpu", Path("never.svg"))
