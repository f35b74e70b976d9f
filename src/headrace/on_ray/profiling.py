"""`headrace profile --cluster ray`: a model timed once on every kind of device that a cluster has.

    here                                      on a node of each kind, one kind after another
    hash the files                       ──▶  which of them are missing?
    send those, in pieces                ──▶  kept under their hash, or refused (`FileStore`)
    the task                             ──▶  a process of its own (`measure`)
    progress, profile                    ◀──

Where blocks begin is found on the first kind, and all others time those blocks (`profiling.kinds`).
One kind at a time: two kinds may be one machine. What is measured on is kept by Ray meanwhile, a
core or a GPU of the kind's first node that has one free.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.catalog.onnx_graph import load_graph
from headrace.domain import errors
from headrace.domain.errors import ClusterError, HeadraceError
from headrace.domain.profile import Profile
from headrace.on_ray.agents import KEPT_S, answered
from headrace.on_ray.connection import ended, no_answer
from headrace.on_ray.kinds import Kind
from headrace.on_ray.launch import launched
from headrace.on_ray.measure import Measure, encoded, said_in
from headrace.profiling.device_parts import has_parts
from headrace.profiling.kinds import cuts_of
from headrace.profiling.one_device import ProfileTask
from headrace.profiling.options import OnProgress
from headrace.profiling.profiler import legal_name, stated_path
from headrace.serving.workers.remote.files import Arriving, FileStore, file_ref
from headrace.serving.workers.remote.frames import FileRef
from headrace.user_cache import cache_folder

PIECE_BYTES = 4 << 20
LOOK_S = 0.2
"""How often a node is asked how far it is."""
SILENT_S = 120.0
"""A node that hashes what it has of a large model is busy so long at most."""
SAID_BYTES = 600

Call = Callable[..., Any]
"""A method of `NodeProfiler` by name, with its arguments."""


class NodeProfiler:
    """Runs on a node, in an actor: one model at a time. Files and lines cross as bytes."""

    def __init__(self, node: str, command: Sequence[str] = ()) -> None:
        """
        Args:
            command: what measures; none: `measure`, by this Python.
        """
        self._command = list(command) or [sys.executable, "-P", "-m", "headrace.on_ray.measure"]
        self._store = FileStore(cache_folder() / f"profile-{node}")
        self._arriving: Arriving | None = None
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._said = b""
        self._ended = False

    def missing(self, files: Sequence[tuple[str, int, str]]) -> list[int]:
        """Which of these (hash, bytes, name) are not here yet."""
        return [index for index, file in enumerate(files) if not self._store.has(FileRef(*file))]

    def begin(self, sha256: str, size_bytes: int) -> None:
        self._arriving = self._store.begin(FileRef(sha256, size_bytes, ""))

    def write(self, piece: bytes) -> None:
        assert self._arriving is not None
        self._arriving.write(memoryview(piece))

    def keep(self) -> None:
        assert self._arriving is not None
        self._store.keep(self._arriving)
        self._arriving = None

    def path(self, sha256: str) -> str:
        """Of a file by itself."""
        return str(self._store.path(sha256))

    def beside(self, files: Sequence[tuple[str, int, str]]) -> str:
        """The folder in which they lie under their names."""
        found = self._store.weights([FileRef(*file) for file in files])
        assert found is not None, "a model is a file"
        return found.folder

    def start(self, line: bytes) -> None:
        """Measure what an encoded `Measure` says."""
        threading.Thread(target=self._run, args=(line,), daemon=True).start()

    def heard(self) -> tuple[list[bytes], str | None]:
        """Lines since the last time; and once there will be no more, what it said besides."""
        with self._lock:
            lines, self._lines = self._lines, []
            last = self._said.decode(errors="replace").strip() if self._ended else None
        return lines, last

    def _run(self, line: bytes) -> None:
        """By the thread that waits for it: it is ended with this thread (`launch`)."""
        try:
            self._measure(line)
        except OSError as error:
            with self._lock:
                self._said = str(error).encode()
        finally:
            with self._lock:
                self._ended = True

    def _measure(self, line: bytes) -> None:
        with subprocess.Popen(
            launched(*self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            aside = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
            aside.start()
            self._tell(process, line)
            for said in process.stdout:
                with self._lock:
                    self._lines.append(said)
            aside.join()

    @staticmethod
    def _tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and says why
            process.stdin.write(line)
            process.stdin.close()

    def _listen(self, stream: Any) -> None:
        for said in stream:
            with self._lock:
                self._said = (self._said + said)[-SAID_BYTES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one kind is measured."""

    node: str
    call: Call


def profile_kinds(
    model: Path,
    task: ProfileTask,
    kinds: Sequence[Kind],
    place: Callable[[Kind], AbstractContextManager[Place]],
    progress: Callable[[str], OnProgress],
) -> dict[str, Profile]:
    """By device type, in the kinds' order; paths in them are of this machine.

    Args:
        place: where a kind is measured, while the block runs.
        progress: of a kind, by its name.

    Raises:
        ModelError, ProfileError: a model, here or there, is not what it should be.
        ClusterError: a node is lost, or has nothing free.
    """
    name = task.options.name or legal_name(model.stem)
    files = _files_of(model, task)
    found: dict[str, Profile] = {}
    for kind in kinds:
        cuts = cuts_of(next(iter(found.values()))) if found else None
        options = replace(task.options, device=kind.device, name=name, cuts=cuts, kind=kind.label)
        # Parts of a GPU are measured where the command runs; nodes may have no service for it.
        shares = () if has_parts(kind.device) else task.shares
        with place(kind) as there:
            measured = _measured(
                model,
                replace(task, options=options, shares=shares),
                files,
                there,
                progress(kind.name),
            )
        path = stated_path(model, task.options.profile_folder)
        found[kind.name] = msgspec.structs.replace(measured, model_path=path)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    ref: FileRef

    @property
    def row(self) -> tuple[str, int, str]:
        return self.ref.sha256, self.ref.size_bytes, self.ref.name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What a node needs."""

    model: tuple[_File, ...]
    """The model's own file, then its weights'; names are relative to its folder."""
    examples: Mapping[str, _File]

    @property
    def all(self) -> tuple[_File, ...]:
        return (*self.model, *self.examples.values())


def _files_of(model: Path, task: ProfileTask) -> _Files:
    """
    Raises:
        ModelError: one cannot be read.
    """
    graph = load_graph(
        model,
        batch_axes=task.options.batch_axes,
        max_string_bytes=task.options.max_string_bytes,
    )
    names = (model.name, *(graph.weights.names if graph.weights else ()))
    return _Files(
        model=tuple(
            _File(path=model.parent / name, ref=file_ref(str(model.parent / name), name))
            for name in names
        ),
        examples={
            name: _File(path=path, ref=file_ref(str(path)))
            for name, path in task.options.examples.items()
        },
    )


def _measured(
    model: Path, task: ProfileTask, files: _Files, there: Place, progress: OnProgress
) -> Profile:
    """
    Raises:
        HeadraceError: as `profile_device` there.
        ClusterError: what measures there ended without a word.
    """
    _send(files, there.call)
    folder = there.call("beside", [file.row for file in files.model])
    options = replace(
        task.options,
        examples={
            name: Path(there.call("path", file.ref.sha256)) for name, file in files.examples.items()
        },
        profile_folder=None,
    )
    path = str(Path(folder) / model.name)
    there.call("start", encoded(Measure(model=path, task=replace(task, options=options))))
    last = None
    while last is None:
        lines, last = there.call("heard")
        for said in map(said_in, lines):
            if said.progress is not None:
                progress(said.progress)
            if said.profile is not None:
                return said.profile
            if said.error:
                kind = getattr(errors, said.kind, HeadraceError)
                raise kind(f"on node {there.node!r}: {said.error.replace(path, str(model))}")
        if last is None:
            time.sleep(LOOK_S)
    raise ClusterError(
        f"node {there.node!r}: what measured there has ended\n"
        f"  got       {' '.join(last.split()) or 'nothing'}\n"
        "  try       `headrace profile` on that machine itself"
    )


def _send(files: _Files, call: Call) -> None:
    for index in call("missing", [file.row for file in files.all]):
        file = files.all[index]
        call("begin", file.ref.sha256, file.ref.size_bytes)
        with file.path.open("rb", buffering=0) as content:
            while piece := content.read(PIECE_BYTES):
                call("write", piece)
        call("keep")


@contextmanager
def place_on_ray(ray: Any, kind: Kind) -> Iterator[Place]:
    """A core or a GPU of this kind, kept by Ray, and who measures on it.

    Raises:
        ClusterError: none is free, or the node cannot run Headrace.
    """
    bundle = {"CPU": 1} if kind.device == "cpu" else {"GPU": 1}
    ids = ",".join(node.id for node in kind.nodes)
    group = ray.util.placement_group(
        [bundle],
        strategy="STRICT_PACK",
        bundle_label_selector=[{"ray.io/node-id": f"in({ids})"}],
    )
    actor = None
    try:
        if not group.wait(KEPT_S):
            [what] = bundle
            names = ", ".join(node.name for node in kind.nodes)
            raise ClusterError(
                f"no {what} of kind {kind.name!r} is free to measure on\n"
                f"  needs     1 {what} on one of {names}\n"
                f"  has       none within {KEPT_S:g} s, since others use them\n"
                "  try       `ray status`; end what uses it, or leave the kind out with --device"
            )
        [id] = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
        [node] = [node for node in kind.nodes if node.id == id]
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=0
        )
        actor = (
            ray.remote(num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0))(NodeProfiler)
            .options(scheduling_strategy=strategy)
            .remote(node.name)
        )

        answered(ray, actor.missing.remote([]), node.name)

        def call(name: str, *arguments: Any) -> Any:
            return _answer(ray, getattr(actor, name).remote(*arguments), node.name)

        yield Place(node=node.name, call=call)
    finally:
        if actor is not None:
            ended(ray, actor)
        ray.util.remove_placement_group(group)


def _answer(ray: Any, reference: Any, node: str) -> Any:
    """
    Raises:
        HeadraceError: what the node raised.
        ClusterError: it was lost, or is silent.
    """
    try:
        return ray.get(reference, timeout=SILENT_S)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, HeadraceError):
            raise type(cause)(f"on node {node!r}: {cause}") from error
        what = f"node {node!r} was lost while it measured"
        raise no_answer(what, error, "`ray status`, and the command again") from error
