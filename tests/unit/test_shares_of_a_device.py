"""Records of shared devices: legal cuts, utilisation, interference; as documents and in memory."""

import json
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import read_interference, read_profile, write_document
from headrace.catalog.problem_file import ClusterEntry, DeviceEntry, NodeEntry, build_cluster
from headrace.domain.cluster import DeviceType
from headrace.domain.errors import DocumentError, ProfileError
from headrace.domain.interference import HoldOut, Interference
from headrace.domain.profile import Provenance
from headrace.domain.utilisation import Utilisation
from headrace.interference import DeviceUse, slowdown_of, slowed_us, uses_of
from helpers.problems import make_profile

HALF, FIFTH, WHOLE = Fraction(1, 2), Fraction(1, 5), Fraction(1)
SHARES = (WHOLE, HALF, FIFTH, 4 * FIFTH)
SPLITS = ((WHOLE,), (HALF, HALF), (4 * FIFTH, FIFTH))
ORIGIN = Provenance(kind="synthetic", date="2026-11-22")
DOCUMENT = Interference(
    device="gpu", coefficients=(0.895, 0.113, 0.716, 0.355, 0.088), provenance=ORIGIN
)


def gpu(**fields: object) -> DeviceType:
    return DeviceType(name="gpu", **{"shares": SHARES, "splits": SPLITS, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "legal"),
    [
        ([], True),
        ([WHOLE], True),
        ([HALF], True),
        ([HALF, HALF], True),
        ([FIFTH, 4 * FIFTH], True),
        ([FIFTH, FIFTH], False),
        ([HALF, FIFTH], False),
        ([HALF, HALF, HALF], False),
    ],
)
def test_a_device_is_cut_only_as_one_of_its_splits(parts: list[Fraction], legal: bool) -> None:
    assert gpu().allows(parts) is legal


def test_without_splits_any_shares_that_fit_are_legal() -> None:
    anyhow = gpu(splits=())
    assert anyhow.allows([HALF, FIFTH, FIFTH])
    assert not anyhow.allows([HALF, 4 * FIFTH])
    assert not anyhow.allows([Fraction(1, 3)])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"splits": ((4 * FIFTH, HALF),)}, r"split \[4/5, 1/2\]: needs 13/10 of a device"),
        ({"splits": ((Fraction(1, 3), HALF),)}, "part 1/3 is none of the device's shares"),
        ({"splits": ((),)}, "has no part of the device's shares"),
        ({"cores": 0}, "cores 0 must be at least 1"),
    ],
)
def test_a_cut_that_is_not_there_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        gpu(**fields)


def test_splits_of_a_problem_file_are_any_or_a_list() -> None:
    def built(**given: object) -> DeviceType:
        entry = msgspec.convert(
            {"shares": SHARES, **given}, DeviceEntry, dec_hook=lambda kind, text: Fraction(text)
        )
        nodes = (NodeEntry(name="n", devices={"gpu": 1}),)
        return build_cluster(ClusterEntry(devices={"gpu": entry}, nodes=nodes)).device_types[0]

    assert built().splits == () == built(splits="any").splits
    assert built(splits=[["1/2", "1/2"]]).splits == ((HALF, HALF),)


def test_a_slowdown_is_the_worst_over_all_neighbours_and_never_below_one() -> None:
    own, light, heavy = DeviceUse(0.5, 0.4, 0.5), DeviceUse(0.1, 0.1, 0.5), DeviceUse(0.9, 0.8, 0.5)

    beside_heavy = 0.895 + 0.113 * 0.5 + 0.716 * 0.9 + 0.355 * 0.4 + 0.088 * 0.8

    assert slowdown_of(DOCUMENT, [own], [[light], [heavy]]) == pytest.approx(beside_heavy)
    assert slowdown_of(DOCUMENT, [DeviceUse(0, 0, 0.5)], [[DeviceUse(0, 0, 0.5)]]) == 1.0
    assert slowdown_of(DOCUMENT, [own], []) == 1.0
    assert slowed_us(10_000, 1.5) == 15_000


def test_a_slowdown_is_the_worst_of_all_batch_sizes_that_both_may_run() -> None:
    own = [DeviceUse(0.5, 0.4, 0.5), DeviceUse(0.3, 0.4, 0.5)]
    other = [DeviceUse(0.1, 0.1, 0.5), DeviceUse(0.1, 0.8, 0.5), DeviceUse(0.1, 0.2, 0.5)]

    worst = 0.895 + 0.113 * 0.5 + 0.716 * 0.1 + 0.355 * 0.4 + 0.088 * 0.8

    assert slowdown_of(DOCUMENT, own, [other[:1], other]) == pytest.approx(worst)


def test_terms_may_be_products_of_features() -> None:
    document = Interference(
        device="gpu", features=("1", "l2_own*share_other"), coefficients=(1, 2), provenance=ORIGIN
    )
    assert slowdown_of(document, [DeviceUse(0.5, 0, 0.4)], [[DeviceUse(0, 0, 0.6)]]) == 1.6


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"coefficients": (1.0,)}, "1 coefficients for 5 terms"),
        ({"coefficients": (1.0, 0.0, 0.0, 0.0, float("nan"))}, "finite"),
        ({"coefficients": (1.0, 0.0, 0.0, 0.0, -1e308)}, "finite"),
        ({"features": ("1", "l3_own"), "coefficients": (1.0, 1.0)}, "no feature 'l3_own'"),
        ({"device": "../gpu"}, "not a legal name"),
    ],
)
def test_an_interference_document_that_means_nothing_is_refused(
    fields: dict[str, object], says: str
) -> None:
    given = {"device": "gpu", "coefficients": (1.0,) * 5, "provenance": ORIGIN, **fields}
    with pytest.raises(DocumentError, match=says):
        Interference(**given)  # type: ignore[arg-type]


def test_an_interference_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    hold_out = HoldOut(
        pairs=750, error_p90=0.1026, error_p95=0.1398, error_p99=0.2, split_by="rows"
    )
    document = msgspec.structs.replace(DOCUMENT, hold_out=hold_out)
    write_document(document, tmp_path / "gpu.interference.json")
    assert read_interference(tmp_path / "gpu.interference.json") == document


def test_a_profile_keeps_its_utilisation_and_says_where_it_lacks_one(tmp_path: Path) -> None:
    used = Utilisation(device="gpu", share=HALF, batch_sizes=(1, 4), l2=(0.1, 0.4), dram=(0.2, 0.2))
    profile = msgspec.structs.replace(make_profile(), utilisation=(used,))
    write_document(profile, tmp_path / "m.profile.json")

    again = read_profile(tmp_path / "m.profile.json")

    assert again.utilisation == (used,)
    *_, found = smaller = uses_of(again, "gpu", HALF, 3)
    assert [use.l2 for use in smaller] == pytest.approx([0.1, 0.2, 0.3])
    assert (found.l2, found.dram) == pytest.approx((0.3, 0.2))
    assert (found.share, found.beside) == (0.5, None)
    with pytest.raises(ProfileError, match="no utilisation on 1/5 of a 'gpu'"):
        uses_of(again, "gpu", FIFTH, 1)


def test_utilisation_beyond_a_whole_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"must lie in \[0, 1\]"):
        Utilisation(device="gpu", share=HALF, batch_sizes=(1,), l2=(1.2,), dram=(0.0,))
    with pytest.raises(ProfileError, match="ascend"):
        Utilisation(device="gpu", share=HALF, batch_sizes=(4, 1), l2=(0, 0), dram=(0, 0))


def test_a_file_with_an_unknown_term_is_refused_with_its_name(tmp_path: Path) -> None:
    write_document(DOCUMENT, tmp_path / "i.json")
    document = json.loads((tmp_path / "i.json").read_text())
    document["features"][1] = "warps"
    (tmp_path / "i.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"i\.json.*no feature 'warps'"):
        read_interference(tmp_path / "i.json")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"shares": (), "splits": ()}, 'needs a share, such as "1"'),
        ({"shares": (Fraction(3, 2),), "splits": ()}, r"share 3/2 must lie in \(0, 1\]"),
        ({"memory_bytes": 0}, "memory_bytes 0 must be at least 1"),
        ({"memory_bytes": -5}, "memory_bytes -5 must be at least 1"),
        ({"max_utilisation": 1e-300}, r"max_utilisation 1e-300 must lie in \[0.001, 1\]"),
        ({"max_utilisation": 1.5}, r"max_utilisation 1.5 must lie in \[0.001, 1\]"),
        ({"price_per_hour": -1.0}, "price_per_hour -1 must be 0, or lie in"),
        ({"price_per_hour": 1e-300}, "price_per_hour 1e-300 must be 0, or lie in"),
        ({"price_per_hour": 1e300}, "price_per_hour 1e.300 must be 0, or lie in"),
    ],
)
def test_a_device_with_which_nothing_can_be_planned_is_refused_with_what_it_has(
    fields: dict[str, object], says: str
) -> None:
    with pytest.raises(DocumentError, match=says):
        gpu(**fields)
