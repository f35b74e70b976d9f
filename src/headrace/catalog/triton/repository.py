"""Triton's layout of folders: MODEL/config.pbtxt, MODEL/VERSION/model.onnx.

Nothing outside the repository is read: no link is followed, and files of weights must lie beside
their model (`weights_files`). Models are read as graphs; nothing is run.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.onnx_graph import OnnxGraph, OpenTensor, load_graph
from headrace.catalog.onnx_types import dtype_name
from headrace.catalog.triton.config import DEFAULT_FILE, ConfigTensor, TritonConfig, read_config
from headrace.domain.base import is_name
from headrace.domain.errors import DocumentError

MAX_MODELS = 1000
MAX_BATCH = 32
"""Largest batch that is profiled unless the user says otherwise; requests may have more items."""

_VERSION = re.compile(r"[1-9][0-9]{0,14}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonModel:
    """One folder of the repository."""

    config: TritonConfig
    version: int
    path: Path | None
    """The ONNX file; None: an ensemble."""
    inputs: tuple[str, ...] = ()
    """In the order of the file."""
    outputs: tuple[str, ...] = ()
    by_items: bool = True
    """Whether the first dimension of its tensors is the number of items here."""
    profile_options: tuple[str, ...] = ()
    """Of `headrace profile`, besides file, name and result."""
    not_carried: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name


def read_repository(folder: Path, names: Sequence[str]) -> dict[str, TritonModel]:
    """The models named, or all; and those that ensembles among them are made of.

    Raises:
        DocumentError: the folder or a configuration is not as Triton's are, or asks for what is not
            served here.
        ModelError: a model cannot be read.
    """
    there = _folders(folder)
    models: dict[str, TritonModel] = {}
    wanted = list(names or there)
    while wanted:
        name = wanted.pop(0)
        if name in models:
            continue
        if name not in there:
            shown = ", ".join(there[:20]) or "none"
            raise DocumentError(f"{folder}: has no model {name[:64]!a}; its models: {shown}")
        models[name] = _model(folder / name, name)
        wanted += [step.model for step in models[name].config.steps]
    return models


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(e.name for e in entries if not e.is_file() and e.name[0] != ".")
    except OSError as error:
        raise DocumentError(f"{folder}: cannot be read: {error.strerror}") from error
    names = [name for name in found if is_name(name)]
    if len(found) > MAX_MODELS or len(names) < len(found):
        raise DocumentError(
            f"{folder}: a repository has at most {MAX_MODELS:,} folders, each named as a model"
        )
    if not names:
        raise DocumentError(f"{folder}: has no models; expected MODEL/config.pbtxt in it")
    return names


def _model(folder: Path, name: str) -> TritonModel:
    _check_kind(folder, stat.S_ISDIR, "a folder")
    config_path = folder / "config.pbtxt"
    if os.path.lexists(config_path):
        _check_kind(config_path, stat.S_ISREG, "an ordinary file")
    config = read_config(config_path, name)
    version, others = _version(folder, config)
    not_carried = [*config.not_carried]
    if others:
        shown = ", ".join(map(str, others))
        not_carried.append(f"version_policy: version {version} is served, and not {shown} as well")
    if config.steps:
        return TritonModel(
            config=config, version=version, path=None, not_carried=tuple(not_carried)
        )
    path = _model_file(folder / str(version), config.file)
    graph = load_graph(path)
    _check_inputs(config_path, config, graph.inputs)
    ours = config.sequences.outputs
    hidden = [n for n in graph.outputs if n not in {t.name for t in config.outputs} | ours]
    if missing := sorted(ours - {*graph.outputs}):
        raise DocumentError(
            f"{config_path}: sequence_batching: output {missing[0]!a} is not in the model"
        )
    if missing := [t.name for t in config.outputs if t.name not in graph.outputs]:
        raise DocumentError(f"{config_path}: output {missing[0]!a} is not in the model")
    _check_outputs(config_path, config, graph)
    if config.outputs and hidden:
        shown = ", ".join(map(ascii, hidden))
        not_carried.append(f"output: the model's others are served as well: {shown}")
    by_items, options = _profiled(config, graph.inputs)
    return TritonModel(
        config=config,
        version=version,
        path=path,
        inputs=tuple(tensor.name for tensor in graph.inputs),
        outputs=graph.outputs,
        by_items=by_items,
        profile_options=(*options, *config.sequences.options()),
        not_carried=tuple(not_carried),
    )


def _check_kind(path: Path, is_kind: Callable[[int], bool], what: str) -> None:
    """Not through a link, which may lead anywhere."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(mode):
        raise DocumentError(f"{path}: is a link, and nothing outside the repository is read")
    if not is_kind(mode):
        raise DocumentError(f"{path}: needs to be {what}")


def _version(folder: Path, config: TritonConfig) -> tuple[int, tuple[int, ...]]:
    """The one that is served, and those that Triton would serve besides."""
    with os.scandir(folder) as entries:
        there = sorted(int(e.name) for e in entries if _VERSION.fullmatch(e.name))
    if isinstance(config.versions, int):
        served = there[-config.versions :]
    else:
        served = [version for version in there if version in config.versions]
    if not served:
        if config.steps and isinstance(config.versions, int):
            return 1, ()
        raise DocumentError(
            f"{folder}: has no version that its policy serves;"
            f" expected {folder.name}/1/{config.file}"
        )
    return served[-1], tuple(served[:-1])


def _model_file(folder: Path, name: str) -> Path:
    """The ONNX file; with files of weights it may be in a folder called like it."""
    _check_kind(folder, stat.S_ISDIR, "a folder")
    path = folder / name
    if os.path.lexists(path) and stat.S_ISDIR(os.lstat(path).st_mode):
        path = path / DEFAULT_FILE
    _check_kind(path, stat.S_ISREG, "an ordinary file")
    return path


def _check_inputs(path: Path, config: TritonConfig, tensors: Sequence[OpenTensor]) -> None:
    """Whether model and configuration mean the same inputs."""
    given = {tensor.name: tensor for tensor in config.inputs}
    ours = config.sequences.inputs
    known = {tensor.name for tensor in tensors}
    if missing := sorted(ours - known):
        raise DocumentError(
            f"{path}: sequence_batching: input {missing[0]!a} is not in the model; it has"
            f" {', '.join(map(ascii, sorted(known)))}"
        )
    if not config.inputs:
        return
    model = {tensor.name: tensor for tensor in tensors if tensor.name not in ours}
    if given.keys() != model.keys():
        raise DocumentError(
            f"{path}: its inputs ({', '.join(map(ascii, given))}) are not the model's"
            f" ({', '.join(map(ascii, model))})"
        )
    for name, tensor in model.items():
        where = f"{path}: input {name!a}"
        _require_alike(where, config, given[name], "takes", tensor.dtype, _whole(tensor))


def _check_outputs(path: Path, config: TritonConfig, graph: OnnxGraph) -> None:
    """Whether model and configuration mean the same outputs, as far as its file states them."""
    for tensor in config.outputs:
        kind = graph.stated_outputs[tensor.name].type.tensor_type
        dims = tuple(dim.dim_value or None for dim in kind.shape.dim)
        where = f"{path}: output {tensor.name!a}"
        dtype = dtype_name(kind.elem_type) or tensor.dtype
        _require_alike(
            where, config, tensor, "gives", dtype, dims if kind.HasField("shape") else None
        )


def _require_alike(
    where: str,
    config: TritonConfig,
    given: ConfigTensor,
    verb: str,
    dtype: str,
    dims: Sequence[int | None] | None,
) -> None:
    """
    Args:
        given: as the configuration has it.
        dims: in the model, None where any; None: it does not say.

    Raises:
        DocumentError: the model's tensor is another.
    """
    wanted = ((-1,) if config.max_batch else ()) + given.dims
    has = wanted if dims is None else dims
    alike = len(has) == len(wanted) and all(
        want in (-1, dim) or dim is None for want, dim in zip(wanted, has, strict=True)
    )
    if given.dtype != dtype or not alike:
        shown = [-1 if dim is None else dim for dim in has]
        raise DocumentError(
            f"{where} is {given.dtype} {list(wanted)}, the model {verb} {dtype} {shown}"
        )


def _whole(tensor: OpenTensor) -> tuple[int | None, ...]:
    """Its shape as the file declares it."""
    axis = tensor.batch_axis
    if axis is None:
        return tensor.item_dims
    return (*tensor.item_dims[:axis], tensor.batch, *tensor.item_dims[axis:])


def _profiled(config: TritonConfig, tensors: Sequence[OpenTensor]) -> tuple[bool, tuple[str, ...]]:
    """Whether the first dimension is the number of items, and options that make `profile` take the
    model as the configuration does."""
    given = {tensor.name: tensor for tensor in config.inputs}
    free = [_whole(tensor)[:1] == (None,) for tensor in tensors]
    open_first = all(free) and all(tensor.dims[0] == -1 for tensor in config.inputs)
    options: list[str] = []
    if config.max_batch or (config.max_batch is None and all(free)):
        options += ["--max-batch", str(min(config.max_batch or 8, MAX_BATCH))]
        options += [
            part for t in tensors if t.batch_axis != 0 for part in ("--batch-axis", f"{t.name}=0")
        ]
        for tensor in tensors:
            options += _shape_option(given.get(tensor.name), _whole(tensor)[1:])
        return True, tuple(options)
    if config.max_batch == 0 and open_first:
        return True, ()
    options += ["--batch-axis", f"{tensors[0].name}=none"] if tensors else []
    for tensor in tensors:
        options += _shape_option(given.get(tensor.name), _whole(tensor))
    return False, tuple(options)


def _shape_option(given: ConfigTensor | None, dims: tuple[int | None, ...]) -> list[str]:
    """Where the file leaves open what the configuration says."""
    if given is None or None not in dims or -1 in given.dims:
        return []
    return ["--shape", f"{given.name}={','.join(map(str, given.dims))}"]
