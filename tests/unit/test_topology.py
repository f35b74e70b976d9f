"""Which GPU helps which: by a file, and by a driver that is not there."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.domain.errors import DocumentError
from headrace.profiling.topology import GpuTopology, found_topology, helpers, read_topology


class Refused(Exception):
    """What NVML raises."""


def nvml(levels: list[list[int]], linked: set[tuple[int, int]], *, hides: bool = False) -> object:
    def ancestor(one: int, other: int) -> int:
        if hides:
            raise Refused
        return levels[one][other]

    return SimpleNamespace(
        NVMLError=Refused,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(levels),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetTopologyCommonAncestor=ancestor,
        nvmlDeviceGetP2PStatus=lambda one, other, what: int((one, other) not in linked),
    )


ALL_OF_FOUR = {(i, j) for i in range(4) for j in range(i + 1, 4)}
P3 = [[0, 10, 40, 40], [10, 0, 40, 40], [40, 40, 0, 10], [40, 40, 10, 0]]


def test_a_server_with_two_switches_is_helped_across_them() -> None:
    found = found_topology(nvml(P3, ALL_OF_FOUR))
    assert found.switches == ((0, 1), (2, 3))
    assert found.nodes == ((0, 1, 2, 3),)
    assert helpers(found) == (2, 3, 0, 1)


def test_a_device_helps_only_over_nvlink_and_never_itself() -> None:
    assert helpers(found_topology(nvml(P3, {(0, 2)}))) == (2, None, 0, None)
    assert helpers(found_topology(nvml([[0]], set()))) == (None,)


def test_of_eight_devices_behind_eight_switches_each_helps_one_of_its_node() -> None:
    levels = [[0 if i == j else 40 if i // 4 == j // 4 else 50 for j in range(8)] for i in range(8)]
    linked = {(i, j) for i in range(8) for j in range(i + 1, 8)}
    found = helpers(found_topology(nvml(levels, linked)))
    assert sorted(helper for helper in found if helper is not None) == list(range(8))
    assert all(device // 4 == (helper or 0) // 4 for device, helper in enumerate(found))


def test_switches_that_are_hidden_are_taken_for_one_each() -> None:
    found = found_topology(nvml(P3, ALL_OF_FOUR, hides=True))
    assert found.switches == ((0,), (1,), (2,), (3,))


def test_a_file_says_it_of_a_machine_that_is_not_here(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("switches: [[0, 1], [2, 3]]\nnvlink: all\n")
    assert read_topology(path) == GpuTopology(switches=((0, 1), (2, 3)), nvlink="all")
    shown = CliRunner().invoke(app, ["topology", "--file", str(path)])
    assert shown.exit_code == 0
    assert "GPU 1  switch 0  helped by GPU 3" in shown.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("switches: [[0], [2]]", "each from 0 on"),
        ("switches: [[0, 1]]\nnvlink: some", "neither pairs nor"),
        ("switches: [[0]]\nswitches: [[0, 1]]", "given twice"),
        ("switches: [[0, 1]]\nnvlink: [[0, 5]]", "device 5 is behind no switch"),
        ("gpus: 4", "is no topology"),
        ("[", "is not YAML"),
    ],
)
def test_what_is_no_topology_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError, match=said):
        read_topology(path)


def test_only_an_ordinary_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "not an ordinary file"), ("gone", "no such file")):
        with pytest.raises(DocumentError, match=said):
            read_topology(tmp_path / name)
