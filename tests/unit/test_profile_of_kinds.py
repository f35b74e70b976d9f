"""A model timed on every kind of node of a cluster, without Ray: actors are objects here."""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.catalog.stage_files import stage_path
from headrace.cli import app
from headrace.domain.errors import ClusterError, HeadraceError, ModelError, ProfileError
from headrace.domain.profile import Profile
from headrace.on_ray import kinds as on_kinds
from headrace.on_ray import profiling
from headrace.on_ray.cluster_part import device_types
from headrace.on_ray.kinds import Kind, KnownNodes, kinds_of, of_kinds
from headrace.on_ray.matching import Devices, Wanted, match
from headrace.on_ray.measure import Measure, encoded, measure_of, run
from headrace.on_ray.nodes import KIND_LABEL, RayNode, nodes_from
from headrace.on_ray.ports import FIRST, LEAST_ROOM, free_ports
from headrace.on_ray.profiling import NodeProfiler, Place, profile_kinds
from headrace.profiling import profiler, segments
from headrace.profiling.kinds import combined, cuts_of
from headrace.profiling.one_device import ProfileTask
from headrace.profiling.options import OnProgress, ProfileOptions, ProfileProgress
from headrace.user_cache import cache_folder
from helpers.onnx_models import add_one_model, chain_model, saved, saved_beside
from helpers.ray_nodes import ray_node

EPYC, XEON = "AMD EPYC 7763 64-Core Processor", "Intel(R) Xeon(R) CPU @ 2.20GHz"


def node(name: str, cpus: int = 2, **more: Any) -> RayNode:
    return ray_node(name, cpus, **more)


OLD_NEW = kinds_of([node("a", kind="old"), node("b", kind="new")], {})
THREE = kinds_of([node(name, kind=name) for name in ("a", "b", "c")], {})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(profiling, "LOOK_S", 0.0)


class Near(NodeProfiler):
    """Measures in this process, where one of its own would be started."""

    def start(self, line: bytes) -> None:
        out = io.BytesIO()
        run(measure_of(line), out)
        self._lines, self._ended = out.getvalue().splitlines(), True


Change = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]


def placed(
    make: Callable[[str], NodeProfiler] = Near, change: Change = lambda name, arguments: arguments
) -> Callable[[Kind], Any]:
    """Kinds' first nodes, as far as this machine can be them."""

    @contextmanager
    def place(kind: Kind) -> Iterator[Place]:
        there = make(kind.nodes[0].name)

        def call(name: str, *arguments: Any) -> Any:
            return getattr(there, name)(*change(name, arguments))

        yield Place(node=kind.nodes[0].name, call=call)

    return place


def quick(**options: Any) -> ProfileTask:
    common: dict[str, Any] = {"blocks": 3, "max_batch": 2, "budget_s": 0.05}
    return ProfileTask(options=ProfileOptions(**{**common, **options}))


def unheard(kind: str) -> OnProgress:
    return lambda report: None


def test_one_kind_of_hardware_has_the_short_name_and_several_have_their_own() -> None:
    alike = [node("a", gpus=1, accelerator="L4"), node("b", cpus=4), node("head", cpus=0)]
    kinds = kinds_of(alike, {"id-a": EPYC, "id-b": EPYC})
    assert [(kind.name, [each.name for each in kind.nodes]) for kind in kinds] == [
        ("cpu", ["a", "b"]),
        ("cuda", ["a"]),
    ]

    mixed = [
        node("a", gpus=1, accelerator="L4"),
        node("b", gpus=2, accelerator="H200"),
        node("c", kind="quiet"),
    ]
    kinds = kinds_of(mixed, {"id-a": EPYC, "id-b": XEON, "id-c": XEON})
    assert device_types(mixed, kinds) == {
        "a": {"cpu-amd-epyc-7763-64-core": 2, "cuda-l4": 1},
        "b": {"cpu-intel-xeon-2.20ghz": 2, "cuda-h200": 2},
        "c": {"cpu-quiet": 2},
    }
    assert [kind.label for kind in kinds] == ["", "", "quiet", "", ""]


def test_a_label_says_the_kind_of_a_node() -> None:
    stated = {
        "NodeID": "f00d" * 14,
        "NodeManagerHostname": "box",
        "NodeManagerAddress": "10.0.0.1",
        "Resources": {"CPU": 2.0},
        "Labels": {KIND_LABEL: "quiet"},
    }
    assert nodes_from([stated])[0].kind == "quiet"
    assert nodes_from([{**stated, "Labels": {KIND_LABEL: "../x"}}])[0].kind == ""


def test_every_kind_times_the_blocks_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def counted(*arguments: Any) -> Any:
        looked.append(1)
        return segments.choose_cuts(*arguments)

    monkeypatch.setattr(profiler, "choose_cuts", counted)
    model = saved_beside(chain_model(layers=6), tmp_path / "my chain.onnx", least_bytes=64)
    said: dict[str, list[ProfileProgress]] = {kind.name: [] for kind in THREE}
    task = quick(profile_folder=tmp_path)
    found = profile_kinds(model, task, THREE, placed(), lambda kind: said[kind].append)

    assert list(found) == ["cpu-a", "cpu-b", "cpu-c"]
    assert len(looked) == 1, "cuts are looked for once"
    assert {report.step for report in said["cpu-b"]} >= {"cut", "time"}
    before = "measured before"
    assert not any(before in str(report.notice) for reports in said.values() for report in reports)
    measured = combined(found)
    assert (measured.model, measured.model_path) == ("my-chain", "my chain.onnx")
    assert stage_path(measured, tmp_path, 0, 1).exists(), "it names the file that is here"
    assert [times.device for times in measured.block_times] == list(found)
    assert len(measured.blocks) == 3
    for kind in found:
        assert measured.measured_stage(kind, Fraction(1), 0, 3) is not None
        assert measured.utilised(kind, Fraction(1)) is not None

    profile_kinds(model, task, THREE, placed(), lambda kind: said[kind].append)
    assert all(before in str(reports[-1].notice) for reports in said.values())


def test_files_cross_once_and_are_what_they_are_called(tmp_path: Path) -> None:
    model = saved_beside(chain_model(), tmp_path / "m.onnx")
    sent: list[str] = []

    def counted(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        sent.extend([name] if name == "begin" else [])
        return arguments

    one = OLD_NEW[:1]
    for _ in range(2):
        profile_kinds(model, quick(blocks=1), one, placed(change=counted), unheard)
    assert len(sent) == 2, "the model's file and its weights"

    def torn(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0][:-1] + b"?",) if name == "write" else arguments

    other = saved(add_one_model(), tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="arrived with other content"):
        profile_kinds(other, quick(blocks=1), one, placed(change=torn), unheard)
    kept = cache_folder() / "profile-b" / "files"
    assert not list(kept.glob(".arriving-*")), "nothing half is left"


def test_what_a_node_refuses_is_said_of_the_file_that_is_here(tmp_path: Path) -> None:
    model = saved(chain_model(), tmp_path / "m.onnx")
    with pytest.raises(ModelError) as refused:
        profile_kinds(model, quick(shapes={"z": (3,)}), OLD_NEW, placed(), unheard)
    assert str(refused.value).startswith(f"on node 'b': {model}:")
    assert str(cache_folder()) not in str(refused.value)


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    model = saved(add_one_model(), tmp_path / "m.onnx")

    def make(name: str) -> NodeProfiler:
        return NodeProfiler(name, [sys.executable, "-c", "raise SystemExit('no memory left')"])

    with pytest.raises(ClusterError, match=r"(?s)node 'b'.*no memory left"):
        profile_kinds(model, quick(), OLD_NEW, placed(make), unheard)


def test_a_process_that_cannot_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(add_one_model(), tmp_path / "m.onnx")

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("subprocess.Popen", refused)
    with pytest.raises(ClusterError, match=r"(?s)node 'b'.*too many processes"):
        profile_kinds(model, quick(), OLD_NEW, placed(NodeProfiler), unheard)


def test_measuring_is_a_process_of_its_own(tmp_path: Path) -> None:
    model = saved(add_one_model(), tmp_path / "m.onnx")
    task = quick(blocks=1, max_batch=1)
    found = profile_kinds(model, task, OLD_NEW[:1], placed(NodeProfiler), unheard)
    assert found["cpu-new"].block_times[0].max_batch == 1


def test_measuring_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What launches it imports `signal`, what measures `random`; with neither it would say why."""
    for name in ("random.py", "signal.py"):
        (tmp_path / name).write_text("raise SystemExit('another module')\n")
    monkeypatch.chdir(tmp_path)
    model = saved(add_one_model(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="z"):
        profile_kinds(model, quick(shapes={"z": (3,)}), OLD_NEW[:1], placed(NodeProfiler), unheard)


def test_a_model_that_cannot_be_cut_where_another_machine_cut_it(tmp_path: Path) -> None:
    model = saved(chain_model(), tmp_path / "m.onnx")
    options = ProfileOptions(blocks=3, max_batch=1, budget_s=0.05, cuts=(("nowhere",),))
    with pytest.raises(ModelError, match="a cut that nowhere crosses"):
        profiler.profile_model(model, options)


def test_profiles_that_differ_are_not_one(tmp_path: Path) -> None:
    model = saved(chain_model(layers=6), tmp_path / "m.onnx")
    three = profiler.profile_model(model, quick().options)
    two = profiler.profile_model(model, quick(blocks=2).options)
    small = profiler.profile_model(model, quick(max_batch=1, cuts=cuts_of(three)).options)
    other = msgspec.structs.replace(three, model_sha256="0" * 64)
    assert len(cuts_of(three)) == 2
    wrong: dict[str, Profile] = {"blocks": two, "batch sizes": small, "another": other}
    for what, profile in wrong.items():
        with pytest.raises(ProfileError, match=f"{what}.*on 'b' than on 'a'"):
            combined({"a": three, "b": profile})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "kubernetes"], "known: ray"),
        (["--address", "10.0.0.1:6379"], "add --cluster ray"),
        (["--cluster", "ray", "--cores", "1,2"], "--cores: measures the machine that it runs on"),
    ],
)
def test_options_that_say_nothing_of_a_cluster_are_bad_input(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    model = saved(add_one_model(), tmp_path / "m.onnx")
    result = CliRunner().invoke(
        app, ["profile", str(model), "-o", str(tmp_path / "m.json"), *arguments]
    )
    assert isinstance(result.exception, HeadraceError)
    assert said in str(result.exception)


@settings(max_examples=10)
@given(count=st.integers(1, 40), given_from=st.sampled_from([FIRST, FIRST + LEAST_ROOM, 32_768]))
def test_ports_are_free_ones_that_the_system_gives_nobody(count: int, given_from: int) -> None:
    found = free_ports("127.0.0.1", count, given_from)
    assert len(set(found)) == count
    if given_from > FIRST:
        assert all(FIRST <= port < given_from for port in found)


def test_nodes_of_a_plan_go_to_machines_of_their_names() -> None:
    there = [node(name) for name in "abc"]
    one = Devices(device="cpu-old", kind="core", count=1, cores=1)
    wanted = [Wanted(name=name, devices=(one,)) for name in ("c", "z", "a")]
    assert match(wanted, there).pairs == {"a": "id-a", "c": "id-c", "z": "id-b"}


def test_a_node_of_a_plan_is_no_machine_of_another_kind() -> None:
    there = of_kinds([node("a", kind="old"), node("b", kind="new")], OLD_NEW)
    wanted = Wanted(name="b", devices=(Devices(device="cpu-old", kind="core", count=1, cores=1),))
    found = match([wanted, msgspec.structs.replace(wanted, name="a")], there)
    assert found.pairs == {"a": "id-a", "b": "id-a"}, "both fit there"
    more = Devices(device="cpu-old", kind="core", count=2, cores=2)
    full = match([msgspec.structs.replace(wanted, name="a", devices=(more,)), wanted], there)
    assert full.missing["b"] == ("a: is a; has 0 CPU of 1", "b: is cpu-new, not cpu-old")


def test_a_kind_whose_last_node_is_lost_is_missing_and_each_node_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def processors(ray: object, nodes: Sequence[RayNode]) -> dict[str, str]:
        asked.extend(node.name for node in nodes)
        return {node.id: XEON if node.name == "a" else EPYC for node in nodes}

    monkeypatch.setattr(on_kinds, "processors_of", processors)
    device = "cpu-amd-epyc-7763-64-core"
    wanted = Wanted(name="x", devices=(Devices(device=device, kind="core", count=1, cores=1),))
    known = KnownNodes(None, [device])

    both = known.with_kinds([node("a"), node("b")])
    assert match([wanted], both, kinds=known.kinds).pairs == {"x": "id-b"}
    left = known.with_kinds([node("a"), node("c")])
    assert match([wanted], left, kinds=known.kinds).pairs == {"x": "id-c"}
    alone = known.with_kinds([node("a")])
    assert match([wanted], alone, kinds=known.kinds).missing["x"] == (
        f"a: is cpu-intel-xeon-2.20ghz, not {device}",
    )
    assert asked == ["a", "b", "c"]
    assert KnownNodes(None, ["cpu"]).with_kinds([node("d")]) == (node("d"),)


def test_parts_of_a_gpu_are_not_asked_of_nodes_which_may_have_nothing_that_divides_it(
    tmp_path: Path,
) -> None:
    asked: dict[str, tuple[Fraction, ...]] = {}
    mixed = kinds_of([node("a", gpus=1, accelerator="L4")], {"id-a": EPYC})

    class Noted(Near):
        def start(self, line: bytes) -> None:
            task = measure_of(line).task
            asked[task.options.device] = task.shares
            # Of a GPU there is none here: a core stands in for it.
            options = replace(task.options, device="cpu", kind="stand-in")
            super().start(
                encoded(Measure(model=measure_of(line).model, task=ProfileTask(options=options)))
            )

    model = saved(add_one_model(8), tmp_path / "m.onnx")
    task = replace(quick(blocks=1), shares=(Fraction(1, 2),))
    profile_kinds(model, task, mixed, placed(Noted), unheard)
    assert asked == {"cpu": (Fraction(1, 2),), "cuda": ()}
