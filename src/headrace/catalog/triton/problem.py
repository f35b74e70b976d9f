"""A repository as a problem file, and its ensembles as an app file beside it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.catalog.triton.config import ConfigStep, ConfigTensor
from headrace.catalog.triton.repository import TritonModel
from headrace.catalog.whole_file import whole_file
from headrace.domain.app import MODULES_MAX, order_by_tensors
from headrace.domain.errors import DocumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the repository does not say."""

    device: str
    count: int
    slo_ms: Mapping[str, float]
    """By model; "": of all others."""
    rate_rps: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The files' content, and what it leaves out."""

    problem: Mapping[str, Any]
    app_file: str | None
    """Python, where there are ensembles."""
    profiles: Mapping[str, TritonModel]
    """What is to be profiled."""
    served: tuple[TritonModel, ...]
    not_carried: tuple[str, ...]
    """`MODEL: FIELD: why not`."""


def import_repository(
    models: Mapping[str, TritonModel], asked: Sequence[str], wanted: Wanted
) -> Imported:
    """Models by themselves as models; with an ensemble among them, all as apps.

    Args:
        models: those to be served, and what they are made of.
        asked: the ones that the user named; empty: all but those that are only parts of ensembles.

    Raises:
        DocumentError: an ensemble does not fit its models, an objective or a rate is missing, or is
            of what is not served.
    """
    used = {step.model for model in models.values() for step in model.config.steps}
    parts = {name for name in used if models[name].path is not None}
    served = [m for name, m in models.items() if (name in asked if asked else name not in parts)]
    _check_named("--slo-ms", wanted.slo_ms, served, models)
    _check_named("--rate-rps", wanted.rate_rps, served, models)
    with_apps = any(model.path is None for model in served)
    entries: dict[str, Any]
    kept = [m.name for m in models.values() if m.config.sequences.states]
    if with_apps and kept:
        raise DocumentError(
            f"{kept[0]}: keeps state between requests, and with ensembles every model is part of an"
            f" app, which carries state itself\n  try       --model, to leave the ensembles out"
        )
    if with_apps:
        entries = {"apps": [_app_entry(model, models, wanted) for model in served]}
    else:
        entries = {"models": [_model_entry(model, wanted) for model in served]}
    problem = {
        "schema": "headrace.problem/1",
        "cluster": {
            # Plans of apps are the cheapest: with one type of device, any price will do.
            "devices": {wanted.device: {"price_per_hour": 1.0} if with_apps else {}},
            "nodes": [{"name": "local", "devices": {wanted.device: wanted.count}}],
        },
        **entries,
    }
    used = {step.model for model in served for step in _steps(model)}
    return Imported(
        problem=problem,
        app_file=_app_file(served, models) if with_apps else None,
        profiles={name: model for name, model in models.items() if name in used},
        served=tuple(served),
        not_carried=tuple(
            f"{m.name}: {what}" for m in models.values() for what in _lost(m, used, served)
        ),
    )


def _check_named(
    option: str,
    given: Iterable[str],
    served: Sequence[TritonModel],
    models: Mapping[str, TritonModel],
) -> None:
    """
    Raises:
        DocumentError: a value is for a name that is not served by itself.
    """
    names = {model.name for model in served}
    for name in given:
        if name and name not in names:
            why = "no such model is imported"
            if name in models:
                owners = [
                    m.name for m in models.values() if name in {s.model for s in m.config.steps}
                ]
                why = f"is only a step of {_listed(owners)}, whose requests call it"
            raise DocumentError(
                f"{option} {name[:64]!a}: {why}; imported: {_listed(sorted(names))}"
            )


def _lost(model: TritonModel, used: set[str], served: Sequence[TritonModel]) -> Iterator[str]:
    if model.path is None or model.name in used:
        yield from model.not_carried
        if model.config.priority and model not in served:
            yield (
                "dynamic_batching.default_priority_level: a step has the priority of its ensemble's"
                " request"
            )


def profile_path(name: str) -> str:
    """Relative to the problem file."""
    return f"profiles/{name}.profile.json"


def write_imported(imported: Imported, path: Path, app_path: Path | None) -> None:
    """
    Raises:
        DocumentError: a file cannot be written.
    """
    lines = ["# From a Triton repository, by `headrace import triton`. Profiles: see its output."]
    lines += [f"# not carried over: {what}" for what in imported.not_carried]
    text = "\n".join(lines) + "\n" + yaml.safe_dump(dict(imported.problem), sort_keys=False)
    with whole_file(path) as file:
        file.write(text.encode())
    if app_path is not None and imported.app_file is not None:
        with whole_file(app_path) as file:
            file.write(imported.app_file.encode())


# -- the problem ---------------------------------------------------------------------------------


def _slo_ms(model: TritonModel, wanted: Wanted) -> float:
    found = wanted.slo_ms.get(model.name)
    if found is None and model.config.queue_timeout_us is not None:
        found = model.config.queue_timeout_us / 1000
    found = wanted.slo_ms.get("") if found is None else found
    if found is None:
        raise DocumentError(
            f"{model.name}: has no objective\n"
            "  needs     a time from arrival to answer; its dynamic_batching has no"
            " default_timeout_microseconds\n"
            f"  try       --slo-ms 100, or --slo-ms {model.name}=100"
        )
    return found


def _served(model: TritonModel, wanted: Wanted) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": model.name, "slo_ms": _slo_ms(model, wanted)}
    rate_rps = wanted.rate_rps.get(model.name, wanted.rate_rps.get(""))
    if rate_rps is not None:
        entry["rate_rps"] = rate_rps
    if model.config.priority:
        entry["priority"] = model.config.priority
    if model.version != 1:
        entry["version"] = model.version
    return entry


def _model_entry(model: TritonModel, wanted: Wanted) -> dict[str, Any]:
    return {"profile": profile_path(model.name), **_served(model, wanted)}


def _app_entry(
    model: TritonModel, models: Mapping[str, TritonModel], wanted: Wanted
) -> dict[str, Any]:
    entry = _served(model, wanted)
    if "rate_rps" not in entry:
        raise DocumentError(
            f"{model.name}: needs a rate, since with ensembles the plan is the cheapest that"
            f" answers it\n  try       --rate-rps {model.name}=10 (requests per second)"
        )
    steps, names = _steps(model), _module_names(model)
    if len(steps) > MODULES_MAX:
        raise DocumentError(
            f"{model.name}: has {len(steps)} steps, at most {MODULES_MAX} can be planned"
        )
    for step in steps:
        _check_step(model, step, models[step.model])
    _check_tensors(model, models)
    flow = [(tuple(step.inputs.values()), tuple(step.outputs.values())) for step in steps]
    if model.path is None:
        given, wanted_at_end = model.config.inputs, model.config.outputs
        order_by_tensors(model.name, (t.name for t in given), flow, (t.name for t in wanted_at_end))
    made_by = {
        tensor: n for step, n in zip(steps, names, strict=True) for tensor in step.outputs.values()
    }
    modules: dict[str, Any] = {}
    for step, name in zip(steps, names, strict=True):
        modules[name] = {"profile": profile_path(step.model)}
        after = sorted({made_by[t] for t in step.inputs.values() if t in made_by})
        if after:
            modules[name]["after"] = after
    return {**entry, "modules": modules}


def _steps(model: TritonModel) -> tuple[ConfigStep, ...]:
    """A model by itself is an ensemble of one step."""
    if model.path is None:
        return model.config.steps
    return (
        ConfigStep(
            model=model.name,
            version=None,
            inputs={name: name for name in model.inputs},
            outputs={tensor.name: tensor.name for tensor in model.config.outputs},
        ),
    )


def _module_names(model: TritonModel) -> list[str]:
    """Each step's model; a number behind it where it is used again."""
    found: list[str] = []
    for step in _steps(model):
        name, number = step.model, 2
        while name in found:
            name, number = f"{step.model}-{number}", number + 1
        found.append(name)
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(ascii, names)) or "nothing"


def _check_step(owner: TritonModel, step: ConfigStep, model: TritonModel) -> None:
    """
    Raises:
        DocumentError: the step does not fit its model.
    """
    where = f"{owner.name}: step {step.model!a}"
    if model.path is None:
        raise DocumentError(f"{where}: is an ensemble itself; write its steps in its place")
    if step.version not in (None, model.version):
        raise DocumentError(
            f"{where}: needs version {step.version}, and its version_policy serves {model.version}"
        )
    if set(step.inputs) != set(model.inputs):
        raise DocumentError(
            f"{where}: input_map names {_listed(step.inputs)}; the model's inputs are"
            f" {_listed(model.inputs)}"
        )
    if unknown := set(step.outputs) - set(model.outputs):
        raise DocumentError(f"{where}: output_map names {min(unknown)!a}, which the model has not")
    if owner.config.max_batch and not model.by_items:
        raise DocumentError(
            f"{where}: max_batch_size is {owner.config.max_batch} of the ensemble, 0 of the model"
        )


def _check_tensors(owner: TritonModel, models: Mapping[str, TritonModel]) -> None:
    """
    Raises:
        DocumentError: what makes a tensor of an ensemble and what takes it state it differently.
    """
    made = {tensor.name: _Stated(owner, tensor) for tensor in owner.config.inputs}
    for step in owner.config.steps:
        model = models[step.model]
        for tensor in model.config.outputs:
            if tensor.name in step.outputs:
                made[step.outputs[tensor.name]] = _Stated(model, tensor)
    for step in owner.config.steps:
        model = models[step.model]
        for tensor in model.config.inputs:
            name = step.inputs[tensor.name]
            _check_alike(owner, name, made.get(name), _Stated(model, tensor))
    for tensor in owner.config.outputs:
        _check_alike(owner, tensor.name, made.get(tensor.name), _Stated(owner, tensor))


@dataclass(frozen=True, slots=True)
class _Stated:
    """A tensor as one configuration states it."""

    model: TritonModel
    tensor: ConfigTensor

    @property
    def dims(self) -> tuple[int, ...]:
        """The whole shape."""
        return ((-1,) if self.model.config.max_batch else ()) + self.tensor.dims

    def __str__(self) -> str:
        return f"{self.tensor.dtype} {list(self.dims)} of {self.model.name!a}"


def _check_alike(owner: TritonModel, name: str, made: _Stated | None, taken: _Stated) -> None:
    if made is None:
        return
    alike = len(made.dims) == len(taken.dims) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(made.dims, taken.dims, strict=True)
    )
    if made.tensor.dtype != taken.tensor.dtype or not alike:
        raise DocumentError(f"{owner.name}: tensor {name!a} is {made} and {taken}")


# -- the app file --------------------------------------------------------------------------------


def _app_file(served: Sequence[TritonModel], models: Mapping[str, TritonModel]) -> str:
    """Python that declares the ensembles. Names from the repository stand in it as texts only."""
    handles: dict[str, str] = {}
    for model in served:
        for name in _module_names(model):
            handles.setdefault(
                name, f"m{len(handles) + 1}_{re.sub(r'[^a-z0-9]', '_', name.lower())}"
            )
    lines = [
        '"""The ensembles of a Triton repository, written by `headrace import triton`."""',
        "",
        "from headrace.apps import ensemble, module, step, tensor",
        "",
        *(f"{handle} = module({name!r})" for name, handle in handles.items()),
    ]
    for number, model in enumerate(served, start=1):
        lines += ["", *_ensemble_lines(f"app{number}", model, models, handles)]
    return "\n".join(lines) + "\n"


def _ensemble_lines(
    variable: str,
    model: TritonModel,
    models: Mapping[str, TritonModel],
    handles: Mapping[str, str],
) -> Iterator[str]:
    config = model.config
    if not config.inputs or not config.outputs:
        raise DocumentError(
            f"{model.name}: needs `input` and `output` in its config.pbtxt, since it is served with"
            " ensembles"
        )
    by_items = model.by_items if model.path else bool(config.max_batch)
    leading = (-1,) if config.max_batch else ()
    yield f"{variable} = ensemble("
    yield f"    {model.name!r},"
    for what, tensors in (("inputs", config.inputs), ("outputs", config.outputs)):
        yield f"    {what}=["
        yield from (f"        {_tensor(tensor, leading)}," for tensor in tensors)
        yield "    ],"
    yield "    steps=["
    for step, name in zip(_steps(model), _module_names(model), strict=True):
        part = models[step.model]
        takes = [step.inputs[tensor] for tensor in part.inputs]
        gives = [step.outputs.get(tensor) for tensor in part.outputs]
        whole = "" if part.by_items else ", items=False"
        yield f"        step({handles[name]}, takes={takes!a}, gives={gives!a}{whole}),"
    yield "    ],"
    if by_items and config.max_batch:
        yield f"    max_items={config.max_batch},"
    yield ")"


def _tensor(tensor: ConfigTensor, leading: tuple[int, ...]) -> str:
    return f"tensor({tensor.name!a}, {tensor.dtype!a}, {(*leading, *tensor.dims)!a})"
