"""`headrace import triton`: what is carried over, what is named, what is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.catalog.problem_file import parse_problem
from headrace.catalog.source import Source
from headrace.catalog.triton.config import MAX_CONFIG_BYTES, read_config
from headrace.catalog.yaml_lines import parse_yaml
from headrace.cli import app
from headrace.domain.errors import HeadraceError
from headrace.serving.apps.files import load_files
from helpers.onnx_models import add_one_model, chain_model, sums_model
from helpers.triton_repository import add_model, ensemble_config, onnx_config

QUEUE = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 } }\n"


def run(repository: Path, *arguments: str) -> tuple[int, dict[str, object], str]:
    """Exit code, what was found, and what was said."""
    out = repository.parent / "out" / "problem.yaml"
    done = CliRunner().invoke(
        app, ["import", "triton", str(repository), "-o", str(out), "--json", *arguments]
    )
    said = str(done.exception or "") + done.stderr
    return done.exit_code, json.loads(done.stdout) if done.stdout else {}, said


def problem(repository: Path) -> Source:
    path = repository.parent / "out" / "problem.yaml"
    return parse_yaml(path, path.read_text())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def test_names_versions_and_objectives_are_carried_over(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16", more=QUEUE), version=3)
    add_model(repository, "chain", chain_model(), onnx_config("chain", "16"))

    code, found, said = run(
        repository, "--slo-ms", "50", "--rate-rps", "chain=7", "--device", "cpu=3"
    )

    assert code == 0, said
    written = parse_problem(problem(repository))
    entries = {entry.name: entry for entry in written.models}
    assert (entries["plus"].slo_ms, entries["plus"].version) == (200.0, 3)
    assert (entries["chain"].slo_ms, entries["chain"].version) == (50.0, 1)
    assert (entries["plus"].rate_rps, entries["chain"].rate_rps) == (None, 7.0)
    assert written.cluster.nodes[0].devices == {"cpu": 3}
    commands = found["profile_commands"]
    assert isinstance(commands, list)
    assert f"{repository}/plus/3/model.onnx --name plus --device cpu --max-batch 4" in commands[1]


def test_the_problem_may_lie_in_the_repository_and_is_made_again(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16", more=QUEUE))
    out = str(repository / "problem.yaml")

    for _ in range(2):
        code, found, said = run(repository, "-o", out)
        assert (code, found.get("problem")) == (0, out), said


@pytest.mark.parametrize("name", ["gone", "x" * 300])
def test_a_repository_that_cannot_be_read_is_named(repository: Path, name: str) -> None:
    (repository / "out").mkdir()
    (repository / "out" / "problem.yaml").write_text("of before")

    code, _, said = run(repository / name)

    assert (code, f"{name}: cannot be read: " in said) == (1, True), said


def test_what_is_not_carried_over_is_named_in_the_answer_and_in_the_file(repository: Path) -> None:
    more = (
        "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]\n"
        "optimization { graph { level: 1 } }\n"
        'parameters { key: "intra_op_thread_count" value: { string_value: "4" } }\n'
        "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100\n"
        "  priority_levels: 3 default_priority_level: 2\n"
        "  priority_queue_policy { key: 1 value: { max_queue_size: 9 } }\n"
        "  default_queue_policy { timeout_action: DELAY max_queue_size: 4\n"
        "    default_timeout_microseconds: 5000 } }\n"
        "version_policy: { all { } }\n"
    )
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16", more=more), version=1)
    (repository / "plus" / "2").mkdir()
    (repository / "plus" / "2" / "model.onnx").write_bytes(add_one_model().SerializeToString())

    code, found, said = run(repository)

    assert code == 0, said
    named = found["not_carried_over"]
    assert isinstance(named, list)
    for field in (
        *("instance_group", "optimization", "parameters", "preferred_batch_size"),
        *("max_queue_delay_microseconds", "priority_queue_policy"),
        *("timeout_action", "max_queue_size", "allow_timeout_override", "version 2 is served"),
    ):
        assert any(field in what for what in named), field
    assert not any("default_priority_level" in what for what in named)
    text = (repository.parent / "out" / "problem.yaml").read_text()
    assert all(f"# not carried over: {what}\n" in text for what in named)


def test_the_default_priority_is_carried_over(repository: Path) -> None:
    more = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }\n"
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16", more=more))

    code, found, said = run(repository, "--slo-ms", "50")

    assert code == 0, said
    written = parse_problem(problem(repository))
    assert {entry.name: entry.priority for entry in written.models} == {"plus": 2}
    assert not found["not_carried_over"]


SEQUENCES = (
    "sequence_batching {{ max_sequence_idle_microseconds: 5000000 direct {{ }}\n"
    '  control_input [ {{ name: "x" control [ {{ kind: CONTROL_SEQUENCE_START\n'
    "    fp32_false_true: [ {pair} ] }} ] }} ]\n"
    '  state [ {{ input_name: "{state}" output_name: "next" {initial} }} ] }}\n'
)


def sequences(pair: str = "0, 1", state: str = "sum", initial: str = "") -> str:
    return SEQUENCES.format(pair=pair, state=state, initial=initial)


@pytest.mark.parametrize(("pair", "kind"), [("0, 1", "start"), ("-1, 2", "start:-1,2")])
def test_states_and_controls_of_sequences_are_carried_over(
    repository: Path, pair: str, kind: str
) -> None:
    text = 'platform: "onnxruntime_onnx" max_batch_size: 4\n' + sequences(pair)
    add_model(repository, "adder", sums_model(), text)

    code, found, said = run(repository, "--slo-ms", "50", "--model", "adder")

    assert code == 0, said
    commands = found["profile_commands"]
    assert isinstance(commands, list)
    (command,) = commands
    assert f"--state sum=next --control x={kind}" in command
    named = found["not_carried_over"]
    assert isinstance(named, list)
    assert any("sequence_batching.direct: a step runs on any slot" in what for what in named)
    assert any("headrace serve --sequence-idle-s" in what for what in named)


NO_SEQUENCES = {
    "a state from a file": (
        sequences(initial='initial_state { data_type: TYPE_FP32 data_file: "s" name: "s" }'),
        "--initial-state",
    ),
    "three values": (sequences("0, 1, 2"), "of two values"),
    "an input that is not there": (sequences(state="total"), "input 'total' is not in the model"),
}


@pytest.mark.parametrize("why", NO_SEQUENCES)
def test_sequences_that_cannot_be_as_they_are_meant_are_refused(repository: Path, why: str) -> None:
    more, sentence = NO_SEQUENCES[why]
    text = 'platform: "onnxruntime_onnx" max_batch_size: 4\n' + more
    add_model(repository, "adder", sums_model(), text)

    code, _, said = run(repository, "--slo-ms", "50", "--model", "adder")

    assert code != 0
    assert sentence in said


REFUSED = {
    "a field that is not Triton's": ("max_bach_size: 4\n", 'no field named "max_bach_size"'),
    "another backend": ('backend: "tensorrt"\n', "'tensorrt' is not served here"),
    "a sequence": ("sequence_batching { }\n", "sequence_batching"),
    "several answers": ("model_transaction_policy { decoupled: true }\n", "decoupled"),
    "a library to run": ('model_operations { op_library_filename: "x.so" }\n', "model_operations"),
    "inputs of the batch": ("batch_input { kind: BATCH_ITEM_SHAPE }\n", "batch_input"),
    "a file elsewhere": ('default_model_filename: "../other/model.onnx"\n', "no name of a file"),
    "a priority of no level": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }\n",
        "default_priority_level 3 needs to lie in 1..2",
    ),
    "no steps": ("ensemble_scheduling { }\n", "without steps"),
    "a version that is not there": (
        "version_policy { specific { versions: [ 9 ] } }\n",
        "no version",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_would_change_answers_is_refused(repository: Path, why: str) -> None:
    more, sentence = REFUSED[why]
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16", more=more))

    code, _, said = run(repository, "--slo-ms", "50")

    assert code != 0
    assert sentence in said
    assert not (repository.parent / "out").exists()


DISAGREEING = {
    "of another folder": (onnx_config("minus", "16"), "is of 'minus'"),
    "another shape": (onnx_config("plus", "17"), "[-1, 17], the model takes float32 [-1, 16]"),
    "another type": (onnx_config("plus", "16").replace("FP32", "INT64"), "is int64"),
    "another input": (onnx_config("plus", "16").replace('"x"', '"w"'), "are not the model's"),
    "another type of an output": (
        onnx_config("plus", "16").replace('"y" data_type: TYPE_FP32', '"y" data_type: TYPE_INT32'),
        "output 'y' is int32 [-1, 16], the model gives float32 [-1, 16]",
    ),
    "another shape of an output": (
        onnx_config("plus", "16").replace(
            '"y" data_type: TYPE_FP32 dims: [ 16', '"y" data_type: TYPE_FP32 dims: [ 7'
        ),
        "output 'y' is float32 [-1, 7], the model gives float32 [-1, 16]",
    ),
    "another output": (onnx_config("plus", "16").replace('"y"', '"w"'), "output 'w' is not in"),
    "reshaped": (
        onnx_config("plus", "16").replace(
            "dims: [ 16 ] }", "dims: [ 16 ] reshape { shape: [ ] } }"
        ),
        "reshape is not served",
    ),
}


@pytest.mark.parametrize("why", DISAGREEING)
def test_a_configuration_that_is_not_the_models_is_refused(repository: Path, why: str) -> None:
    config, sentence = DISAGREEING[why]
    add_model(repository, "plus", add_one_model(), config)

    code, _, said = run(repository, "--slo-ms", "50")

    assert code != 0
    assert sentence in said


def test_what_a_models_file_does_not_state_of_its_output_is_taken_as_configured(
    repository: Path,
) -> None:
    model = add_one_model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    config = onnx_config("plus", "16").replace(
        '"y" data_type: TYPE_FP32 dims: [ 16', '"y" data_type: TYPE_FP32 dims: [ -1'
    )
    add_model(repository, "plus", model, config)

    code, _, said = run(repository, "--slo-ms", "50")

    assert code == 0, said


def test_without_an_objective_the_option_is_named(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    code, _, said = run(repository)
    assert code != 0
    assert "--slo-ms plus=100" in said


def test_a_model_without_a_configuration_is_taken_as_its_file_has_it(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), None)
    code, found, said = run(repository, "--slo-ms", "50")
    assert code == 0, said
    assert found["not_carried_over"] == []


def test_a_model_that_is_not_batched_is_profiled_so(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "3, 16", max_batch=0))
    code, found, said = run(repository, "--slo-ms", "50")
    assert code == 0, said
    assert "--batch-axis x=none --shape x=3,16" in str(found["profile_commands"])


@pytest.mark.parametrize("place", ["plus", "plus/config.pbtxt", "plus/1", "plus/1/model.onnx"])
def test_no_link_is_followed(repository: Path, tmp_path: Path, place: str) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    elsewhere = tmp_path / "elsewhere"
    (repository / place).rename(elsewhere)
    (repository / place).symlink_to(elsewhere)

    code, _, said = run(repository, "--slo-ms", "50")

    assert code != 0
    assert "is a link, and nothing outside the repository is read" in said


def test_an_ensemble_becomes_an_app_of_its_steps(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "chain", chain_model(), onnx_config("chain", "16"))
    steps = {"chain": ("m", "z"), "plus": ("a", "m")}
    add_model(repository, "both", None, ensemble_config("both", "16", steps), version=2)

    code, found, said = run(repository, "--slo-ms", "50", "--rate-rps", "20")

    assert code == 0, said
    [entry] = parse_problem(problem(repository)).apps
    assert (entry.name, entry.version, entry.rate_rps) == ("both", 2, 20.0)
    assert {name: module.after for name, module in entry.modules.items()} == {
        "chain": ("plus",),
        "plus": (),
    }
    [loaded] = load_files([Path(str(found["app_file"]))])
    assert list(loaded.functions) == ["both"]
    assert loaded.modules == {"plus", "chain"}
    [given] = loaded.functions["both"].inputs
    assert (given.name, given.dtype, given.item_shape) == ("a", "float32", (-1, 16))


def test_functions_that_somebody_has_changed_are_kept(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "both", None, ensemble_config("both", "16", {"plus": ("a", "z")}))
    options = ("--slo-ms", "50", "--rate-rps")
    _, found, _ = run(repository, *options, "20")
    app_file = Path(str(found["app_file"]))
    given = app_file.read_text()

    assert run(repository, *options, "30")[0] == 0
    assert list(app_file.parent.glob("*.py")) == [app_file], "what is the same is written again"
    app_file.write_text(given + "# mine\n")
    code, _, said = run(repository, *options, "40")

    assert code == 0, said
    assert app_file.read_text() == given + "# mine\n"
    assert app_file.with_name("problem_apps.new.py").read_text() == given
    assert f"{app_file} is kept" in said
    assert parse_problem(problem(repository)).apps[0].rate_rps == 40.0


def test_beside_an_ensemble_a_model_is_an_app_of_one_module(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "chain", chain_model(), onnx_config("chain", "16"))
    add_model(repository, "both", None, ensemble_config("both", "16", {"plus": ("a", "z")}))

    code, found, said = run(repository, "--slo-ms", "50", "--rate-rps", "20")

    assert code == 0, said
    assert {entry.name for entry in parse_problem(problem(repository)).apps} == {"both", "chain"}
    [loaded] = load_files([Path(str(found["app_file"]))])
    assert set(loaded.functions) == {"both", "chain"}


ENSEMBLES = {
    "a circle": ({"plus": ("m", "z"), "chain": ("z", "m")}, "in a circle"),
    "a tensor from nowhere": ({"plus": ("q", "z")}, "'q' is made by no step"),
    "an output from nowhere": ({"plus": ("a", "q")}, "'z' is made by no step"),
    "a tensor made twice": ({"plus": ("a", "z"), "chain": ("a", "z")}, "made twice"),
    "a model that is not there": ({"minus": ("a", "z")}, "has no model 'minus'"),
    "itself": ({"both": ("a", "z")}, "is an ensemble itself"),
}


@pytest.mark.parametrize("why", ENSEMBLES)
def test_an_ensemble_that_does_not_fit_is_refused(repository: Path, why: str) -> None:
    steps, sentence = ENSEMBLES[why]
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "chain", chain_model(), onnx_config("chain", "16"))
    add_model(repository, "both", None, ensemble_config("both", "16", steps))

    code, _, said = run(repository, "--slo-ms", "50", "--rate-rps", "20")

    assert code != 0
    assert sentence in said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "z",
            "TYPE_FP32 dims: [ 7",
            "tensor 'z' is float32 [-1, 16] of 'plus' and float32 [-1, 7]",
        ),
        ("z", "TYPE_FP64 dims: [ 16", "tensor 'z' is float32 [-1, 16] of 'plus' and float64"),
        ("a", "TYPE_INT32 dims: [ 16", "tensor 'a' is int32 [-1, 16] of 'both' and float32"),
    ],
)
def test_tensors_that_a_step_makes_otherwise_than_the_ensemble_says_are_refused(
    repository: Path, before: str, after: str, said: str
) -> None:
    config = ensemble_config("both", "16", {"plus": ("a", "z")})
    stated = f'name: "{before}" data_type: TYPE_FP32 dims: [ 16'
    assert stated in config
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    changed = config.replace(stated, f'name: "{before}" data_type: {after}')
    add_model(repository, "both", None, changed)

    code, _, shown = run(repository, "--slo-ms", "50", "--rate-rps", "20")

    assert code != 0
    assert said in shown


def test_an_ensemble_needs_a_rate(repository: Path) -> None:
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "both", None, ensemble_config("both", "16", {"plus": ("a", "z")}))
    code, _, said = run(repository, "--slo-ms", "50")
    assert code != 0
    assert "--rate-rps both=10" in said


OF_NOTHING_SERVED = {
    "a slip of the pen": ("pluss", [], "no such model is imported; imported: 'both', 'chain'"),
    "a step": ("plus", [], "is only a step of 'both', whose requests call it"),
    "a step, named": ("plus", ["--model", "both"], "is only a step of 'both'"),
    "left out": ("chain", ["--model", "both"], "no such model is imported; imported: 'both'"),
}


@pytest.mark.parametrize("option", ["--slo-ms", "--rate-rps"])
@pytest.mark.parametrize("why", OF_NOTHING_SERVED)
def test_an_objective_or_a_rate_of_what_is_not_served_is_refused(
    repository: Path, option: str, why: str
) -> None:
    name, more, sentence = OF_NOTHING_SERVED[why]
    add_model(repository, "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(repository, "chain", chain_model(), onnx_config("chain", "16"))
    add_model(repository, "both", None, ensemble_config("both", "16", {"plus": ("a", "z")}))
    asked = ("--slo-ms", "50", "--rate-rps", "20", *more)

    assert run(repository, *asked)[0] == 0
    code, _, said = run(repository, *asked, option, f"{name}=7")

    assert code != 0
    assert f"{option} '{name}': {sentence}" in said


# -- hostile configurations -----------------------------------------------------------------------


def test_a_configuration_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text("#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(HeadraceError, match="too large"):
        read_config(path, "plus")
    path.write_text("input { " * 30_000)
    with pytest.raises(HeadraceError, match="is no configuration of Triton's"):
        read_config(path, "plus")
