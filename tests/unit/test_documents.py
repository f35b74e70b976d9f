"""Documents are read strictly and refused with file, line, path, and what to do."""

import json
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headrace.catalog.documents import (
    encode_document,
    plan_profiles,
    read_plan,
    read_problem,
    read_profile,
    sha256_file,
    write_document,
)
from headrace.catalog.schemas import document_schema
from headrace.catalog.source import read_bounded
from headrace.catalog.unexecuted import UNEXECUTED
from headrace.domain.errors import DocumentError, HeadraceError, PlanError, ProfileError
from headrace.domain.plan import Plan
from headrace.domain.problem import ProfileRef
from headrace.domain.profile import Profile, StageTimes
from helpers.problems import make_plan, make_profile

PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices:
    cpu: {price_per_hour: 0.04, max_utilisation: 0.8, shares: ["1", "1/2"]}
    gpu: {}
  nodes:
    - {name: local, devices: {cpu: 2}}
    - {name: rack, count: 2, devices: {cpu: 4, gpu: 1}, bandwidth_gbps: 10}
models:
  - {name: m, profile: m.profile.json, slo_ms: 0.3, weight: 2, rate_rps: 12}
options: {objective: throughput, margin: 0.2, max_stages: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_document(make_profile("m"), tmp_path / "m.profile.json")
    return tmp_path


def refusal(folder: Path, text: str, name: str = "problem.yaml") -> str:
    """The message with which a problem of this text is refused, without its folder."""
    (folder / name).write_text(text)
    with pytest.raises(HeadraceError) as caught:
        read_problem(folder / name)
    return str(caught.value).replace(f"{folder}{os.sep}", "")


def test_a_problem_in_human_units_becomes_microseconds_nodes_and_exact_shares(
    folder: Path,
) -> None:
    (folder / "problem.yaml").write_text(PROBLEM)

    problem = read_problem(folder / "problem.yaml")

    [demand] = problem.demands
    assert (demand.model, demand.slo_us, demand.weight, demand.rate_rps) == ("m", 300, 2.0, 12.0)
    assert problem.cluster.device_type("cpu").shares == (Fraction(1), Fraction(1, 2))
    assert problem.cluster.device_type("gpu").shares == (Fraction(1),)
    assert [node.name for node in problem.cluster.nodes] == ["local", "rack-0", "rack-1"]
    assert problem.cluster.count("cpu") == 10
    assert problem.cluster.node("rack-1").bandwidth_gbps == 10.0
    assert problem.options.max_stages == 2
    assert problem.profiles["m"] == make_profile("m")
    assert problem.profile_refs == (
        ProfileRef(model="m", path="m.profile.json", sha256=sha256_file(folder / "m.profile.json")),
    )


def test_a_problem_may_be_json_and_means_the_same(folder: Path) -> None:
    import yaml

    (folder / "problem.yaml").write_text(PROBLEM)
    as_json = msgspec.json.encode(yaml.safe_load(PROBLEM))
    (folder / "problem.json").write_bytes(as_json)

    assert read_problem(folder / "problem.json") == read_problem(folder / "problem.yaml")


def test_the_name_of_a_model_defaults_to_its_profiles(folder: Path) -> None:
    (folder / "problem.yaml").write_text(PROBLEM.replace("name: m, ", ""))

    assert read_problem(folder / "problem.yaml").demands[0].model == "m"


@dataclass(frozen=True)
class Refusal:
    """One edit of a good problem, and what the message must say."""

    old: str
    new: str
    says: tuple[str, ...]


REFUSALS = {
    "wrong type": Refusal(
        "slo_ms: 0.3",
        "slo_ms: fast",
        ("problem.yaml, line 10: $.models[0].slo_ms", "expected  float", "got       str 'fast'"),
    ),
    "unknown field": Refusal(
        "slo_ms: 0.3",
        "slo_mss: 0.3",
        ("line 10: $.models[0].slo_mss", "unknown field 'slo_mss'", "did you mean 'slo_ms'?"),
    ),
    "missing field": Refusal(
        "slo_ms: 0.3, ", "", ("line 10: $.models[0]", "the field 'slo_ms'", "headrace schema")
    ),
    "not one of the values": Refusal(
        "objective: throughput",
        "objective: speed",
        (
            "line 11: $.options.objective",
            "least-cost, least-devices, max-min, throughput",
            "'speed'",
        ),
    ),
    "an entry of a map": Refusal(
        "{cpu: 4, gpu: 1}",
        "{cpu: 4, gpu: one}",
        ("line 8: $.cluster.nodes[1].devices.gpu", "expected  int", "'one'"),
    ),
    "a field below a map": Refusal(
        "max_utilisation: 0.8",
        "max_utilisation: high",
        ("line 4: $.cluster.devices.cpu.max_utilisation", "expected  float"),
    ),
    "a share that is none": Refusal("1/2", "1/x", ("line 4: $.cluster.devices.cpu.shares[1]",)),
    "a share without end": Refusal("1/2", "1e999999999", ("shares[1]", 'such as "1/2"')),
    "a share over one": Refusal("1/2", "3/2", ("'cpu'", "(0, 1]")),
    "a negative SLO": Refusal("0.3", "-3", ("$.models[0].slo_ms", "float > 0", "int -3")),
    "more nodes than allowed": Refusal("count: 2", "count: 99999999", ("<= 200000", "99999999")),
    "a link that carries next to nothing": Refusal(
        "bandwidth_gbps: 10", "bandwidth_gbps: 5.0e-324", ("4.94066e-324", "at least 1e-06")
    ),
    "devices of an unknown type": Refusal("{cpu: 2}", "{tpu: 2}", ("'tpu'", "known: cpu, gpu")),
    "an option out of range": Refusal("margin: 0.2", "margin: 1.5", ("[0, 1)",)),
    "not a number": Refusal("0.3", ".nan", ("line 10", "not a number")),
    "infinity": Refusal("0.3", "-.inf", ("line 10", "not a number")),
    "infinity by size": Refusal("0.3", "1.0e+999", ("line 10", "too large")),
    "a whole number beyond 2^53": Refusal(
        "max_stages: 2", "max_stages: 9007199254740993", ("line 11", "too large")
    ),
    "an integer of too many digits": Refusal("max_stages: 2", "max_stages: " + "9" * 99, ("int",)),
    "a field given twice": Refusal("weight: 2", "weight: 2, weight: 3", ("line 10", "twice")),
    "a tag": Refusal("name: m", "name: !!python/name:os.system x", ("line 10", "tag")),
    "a merge": Refusal("gpu: {}", "gpu: {<<: {shares: [1]}}", ("line 5", "`<<`")),
    "no YAML": Refusal("nodes:", "nodes: }", ("line 6, column 10", "not YAML")),
    "another version": Refusal("problem/1", "problem/7", ("line 1", "known versions: 1")),
    "another kind": Refusal("problem/1", "plan/1", ("expected  schema: headrace.problem/1",)),
    "no schema": Refusal("schema: headrace.problem/1\n", "", ("does not state its schema",)),
    "a profile that is not there": Refusal("m.profile", "x.profile", ("x.profile.json", "no such")),
    "a profile whose name no file can have": Refusal(
        "m.profile.json", r'"\0.json"', ("is not the name of a file",)
    ),
    "a profile of another model": Refusal("name: m", "name: other", ("'other'", "'m'")),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_bad_problem_is_refused_with_file_place_and_reason(folder: Path, case: str) -> None:
    edit = REFUSALS[case]
    assert edit.old in PROBLEM

    message = refusal(folder, PROBLEM.replace(edit.old, edit.new, 1))

    assert message.startswith("problem.yaml")
    for words in edit.says:
        assert words in message


def test_two_entries_for_one_model_are_refused(folder: Path) -> None:
    line = "  - {profile: m.profile.json, slo_ms: 3}\n"

    message = refusal(folder, PROBLEM.replace("options:", f"{line}options:"))

    assert "one demand per model" in message


def test_yaml_anchors_are_understood(folder: Path) -> None:
    (folder / "problem.yaml").write_text(
        PROBLEM.replace("{cpu: 2}", "&two {cpu: 2}").replace("{cpu: 4, gpu: 1}", "*two")
    )

    assert read_problem(folder / "problem.yaml").cluster.count("cpu") == 6


def test_yaml_aliases_that_expand_without_end_are_refused(folder: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]

    assert "more than 100,000 values" in refusal(folder, "\n".join(lines))
    assert "nested too deeply" in refusal(folder, "a: &a [*a]")


@pytest.mark.parametrize("name", ["problem.yaml", "problem.json"])
def test_deep_nesting_is_refused(folder: Path, name: str) -> None:
    assert "nested too deeply" in refusal(folder, "[" * 100_000, name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b'{"schema":\n "\xff"}', "line 2: is not UTF-8"),
        (b"{", "line 1, column 2: is not JSON"),
        (b"[]", "a list of 0"),
        (b"{}", "does not state its schema"),
        (b'{"schema": "headrace.profile/1", "schema": "headrace.profile/1"}', "twice"),
        (b'{"schema": "headrace.profile/1", "model": NaN}', "NaN"),
        (b'{"schema": "headrace.profile/1", "model": 1e999}', "too large"),
        (b'{"schema": "headrace.profile/1", "model": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"schema": "headrace.profile/1", "model": 9007199254740993}', "a whole number"),
        (b'{"schema": "headrace.profile/1", "model": -9007199254740993}', "a whole number"),
        (b'{"schema": "headrace.profile/1", "model": ' + b"9" * 99 + b"}", "99... is too large"),
        (b'{"schema": 1}', "schema: 1"),
        (b'{"schema": "\\ud800"}', "lone surrogate"),
        (b'{"schema": "headrace.profile/1"}', "the field 'model'"),
    ],
)
def test_a_bad_profile_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)

    with pytest.raises(DocumentError, match=r"bad\.json") as caught:
        read_profile(path)

    assert says in str(caught.value)


def test_a_problem_that_was_not_planned_yet_is_refused_as_a_plan_with_what_to_do(
    folder: Path,
) -> None:
    (folder / "problem.yaml").write_text(f"# ours\n{PROBLEM}")
    (folder / "problem.json").write_text('{"schema": "headrace.problem/1"}')

    for name, line in (("problem.yaml", 2), ("problem.json", 1)):
        with pytest.raises(DocumentError) as caught:
            read_plan(folder / name)
        said = str(caught.value)
        assert f"{name}, line {line}: is another kind of document" in said
        assert f"`headrace plan {folder / name} -o plan.json` first" in said


def test_a_json_refusal_names_the_line_of_the_value_at_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.profile.json"
    write_document(make_profile("m", blocks=3), path)
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"block1"' in line)
    lines[at] = lines[at].replace('"block1"', "17")
    path.write_text("\n".join(lines))

    with pytest.raises(DocumentError) as caught:
        read_profile(path)

    assert f"line {at + 1}: $.blocks[1].name" in str(caught.value)


def test_an_inconsistent_profile_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m.profile.json"
    good = encode_document(make_profile("m"))
    path.write_bytes(good.replace(b'"p99_us": [', b'"p99_us": [[1, 1], ', 1))

    with pytest.raises(ProfileError, match=r"m\.profile\.json: "):
        read_profile(path)


def test_a_stage_or_a_kind_of_slot_with_two_times_is_refused() -> None:
    profile = make_profile("m")
    (times, *_) = profile.block_times
    whole = StageTimes(
        device=times.device,
        share=times.share,
        first_block=0,
        end_block=len(profile.blocks),
        p50_us=(1_000,),
        p99_us=(1_100,),
    )
    replace(profile, stage_times=(whole,))

    with pytest.raises(ProfileError, match=r"times of stage \[0, \d+\) on 1 of .* 2 times"):
        replace(profile, stage_times=(whole, replace(whole, p50_us=(900,))))
    with pytest.raises(ProfileError, match="times of the blocks"):
        replace(profile, block_times=(*profile.block_times, times))


def test_a_file_over_the_limit_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(b"[" * 1001)

    with pytest.raises(DocumentError, match="1,000 bytes"):
        read_bounded(path, limit_bytes=1000)


def test_a_folder_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        read_plan(tmp_path)
    with pytest.raises(DocumentError, match="no such file"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_brings_its_profiles_back(folder: Path) -> None:
    plan_path = written_plan(folder)

    assert plan_profiles(read_plan(plan_path), plan_path) == {"m": make_profile("m")}


def test_a_profile_that_changed_since_planning_is_refused(folder: Path) -> None:
    plan_path = written_plan(folder)
    write_document(make_profile("m", block_us=9_000), folder / "m.profile.json")

    with pytest.raises(PlanError, match="has changed"):
        plan_profiles(read_plan(plan_path), plan_path)


def test_a_plans_missing_profile_is_named(folder: Path) -> None:
    plan_path = written_plan(folder)
    (folder / "m.profile.json").unlink()

    with pytest.raises(DocumentError, match=r"the profile of 'm'.*m\.profile\.json"):
        plan_profiles(read_plan(plan_path), plan_path)


def written_plan(folder: Path) -> Path:
    """A plan beside its profile."""
    ref = ProfileRef(
        model="m", path="m.profile.json", sha256=sha256_file(folder / "m.profile.json")
    )
    plan = msgspec.structs.replace(make_plan(), profiles=(ref,))
    write_document(plan, folder / "plan.json")
    return folder / "plan.json"


def edited(path: Path, at: tuple[str | int, ...], value: object) -> None:
    """Set a field of a written JSON document."""
    document = json.loads(path.read_text())
    owner = document
    for key in at[:-1]:
        owner = owner[key]
    owner[at[-1]] = value
    path.write_text(json.dumps(document, indent=1))


FIRST_STAGE = ("deployments", 0, "pipelines", 0, "stages", 0)
HALF_THE_TIME = {"period_us": 10_000_000, "offset_us": 0, "length_us": 5_000_000}
NOT_EXECUTED = {
    "turns on a slot": (
        ("slots", 0, "tenants", 0, "duty"),
        HALF_THE_TIME,
        "slot local/a-0, tenant m: 'duty' is refused: nothing acts on it",
    ),
    "another depth": (
        ("deployments", 0, "pipelines", 1, "alternatives"),
        [{"stages": [], "latency_us": 1, "throughput_rps": 1.0}],
        "deployment m, pipeline p1: 'alternatives' is refused: nothing acts on it",
    ),
    "weights off the device": (
        (*FIRST_STAGE, "residency"),
        [{"layer": "block0", "place": "host"}],
        "deployment m, pipeline p0, stage 0: 'residency' is refused: nothing acts on it",
    ),
}


@pytest.mark.parametrize("case", NOT_EXECUTED)
def test_a_plan_that_asks_for_what_nothing_executes_is_refused_by_name(
    folder: Path, case: str
) -> None:
    at, value, says = NOT_EXECUTED[case]
    plan_path = written_plan(folder)
    edited(plan_path, at, value)
    line = next(
        number
        for number, text in enumerate(plan_path.read_text().splitlines(), start=1)
        if f'"{at[-1]}"' in text
    )

    with pytest.raises(DocumentError) as caught:
        read_plan(plan_path)

    assert f"plan.json, line {line}: {says}" in str(caught.value)
    assert "\n  but " in str(caught.value)
    assert "\n  try " in str(caught.value)
    assert caught.value.exit_code == 2


def test_documents_that_state_empty_fields_which_nothing_executes_are_read(folder: Path) -> None:
    plan_path = written_plan(folder)
    expected = read_plan(plan_path)
    for at, _, _ in NOT_EXECUTED.values():
        edited(plan_path, at, None if at[-1] == "duty" else [])
    for field in ("layers", "utilisation"):
        edited(folder / "m.profile.json", (field,), [])

    assert read_plan(plan_path) == expected
    assert read_profile(folder / "m.profile.json") == make_profile("m")


def test_every_field_that_nothing_executes_is_in_no_record_and_in_these_tests() -> None:
    records = {"headrace.plan/1": Plan, "headrace.profile/1": Profile}
    tested = {
        tuple(key for key in at if isinstance(key, str)) for at, _, _ in NOT_EXECUTED.values()
    }
    assert {field.path for field in UNEXECUTED["headrace.plan/1"]} == tested
    for schema, fields in UNEXECUTED.items():
        text = json.dumps(document_schema([records[schema]], schema, ""))
        assert not [field.path for field in fields if f'"{field.path[-1]}":' in text]


@pytest.mark.parametrize("field", ["node_count", "weights_bytes", "cut_bytes"])
def test_a_block_of_less_than_nothing_is_refused(folder: Path, field: str) -> None:
    edited(folder / "m.profile.json", ("blocks", 0, field), -5_000_000)

    with pytest.raises(ProfileError, match=f"m.profile.json: block .*: {field} is negative"):
        read_profile(folder / "m.profile.json")
