"""Reads, verifies and cuts a plan in a process of its own, before a running server takes it.

Verification, the cutting of models, and the compilation of another policy's dispatcher take whole
seconds of Python, which a server that serves does not have: other threads of its process would
wait. The stage files and the machine code that this leaves in the caches are what the server then
loads. It reads the plan itself, and takes it only where it is the one that was vetted.
"""

import asyncio
import hashlib
import sys
from functools import partial
from pathlib import Path

import msgspec

from headrace.catalog.documents import plan_profiles, read_plan
from headrace.dispatch.policies import chosen_for, policy_for
from headrace.dispatch.topology import Topology
from headrace.domain.base import Record, encode_fraction
from headrace.domain.errors import HeadraceError, PlanError
from headrace.domain.plan import Plan
from headrace.executors.table import ExecutorChoice
from headrace.serving.changes.process_beside import started_beside
from headrace.serving.engine.served_plan import ServedPlan
from headrace.serving.workers.placeholder_tensors import with_tensors
from headrace.serving.workers.placement import worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.simulation.warm_up import warm_up
from headrace.verify import verify

MAX_VERDICT_BYTES = 1 << 20


class VettingError(HeadraceError):
    """The plan is not fit to be served; the message is the verdict."""

    exit_code = 4


class Verdict(Record, frozen=True, kw_only=True):
    """What the other process found."""

    error: str | None = None
    plan_sha256: str = ""
    """Of the plan that it read; see `fingerprint`."""


def read_served_plan(path: Path) -> ServedPlan:
    """Read a plan and its profiles.

    Raises:
        DocumentError: a file is missing or does not follow its schema.
        PlanError: a profile has changed since it was planned with.
    """
    plan = read_plan(path)
    profiles = {name: with_tensors(p) for name, p in plan_profiles(plan, path).items()}
    folders = {ref.model: (path.parent / ref.path).parent for ref in plan.profiles}
    return ServedPlan(plan=plan, profiles=profiles, folders=folders)


def fingerprint(plan: Plan) -> str:
    """SHA-256, in hexadecimal, of all that a plan says; it names its profiles, and these their
    models, by their own."""
    return hashlib.sha256(msgspec.json.encode(plan, enc_hook=encode_fraction)).hexdigest()


def refuse_violations(served: ServedPlan) -> None:
    """Raises PlanError: the plan does not keep what it claims."""
    violations = verify(served.plan, served.profiles)
    if violations:
        shown = "\n".join(
            f"  {found.where}: {found.what}: needs {found.needed}, has {found.available}"
            for found in violations[:5]
        )
        raise PlanError(
            f"serve: the plan fails verification ({len(violations)} violations)\n{shown}\n"
            "  try    `headrace verify` for all of them, then `headrace plan` again"
        )


async def vet(path: Path, executor: ExecutorChoice, policy: str | None) -> ServedPlan:
    """Have another process read, verify and cut the plan, and compile its dispatcher.

    Args:
        policy: None: the one that the plan was made for.

    Returns:
        The plan that was vetted, as this process reads it.

    Raises:
        VettingError: it must not be served, or the file says something else by now; says which.
        HeadraceError: the file, or a profile, can be read no more; or no process can be started.
    """
    verdict = await _verdict(path, executor, policy)
    if verdict.error is not None:
        raise VettingError(verdict.error)
    served = await asyncio.to_thread(read_served_plan, path)
    if fingerprint(served.plan) != verdict.plan_sha256:
        raise VettingError(
            f"{path}: the plan has changed while it was vetted, and nobody has verified what it"
            " says now\n  try    again, once the file is as it shall be"
        )
    return served


async def _verdict(path: Path, executor: ExecutorChoice, policy: str | None) -> Verdict:
    """
    Raises:
        VettingError: the other process has none.
        SystemLimitError: it cannot be started.
    """
    process = await started_beside(
        f"{path}: the process that vets the plan",
        "headrace.serving.changes.vetting",
        *(str(path), executor, policy or ""),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        said = await process.stdout.read(MAX_VERDICT_BYTES)
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if code != 0:
        raise VettingError(f"{path}: vetting the plan ended with status {code}; see above")
    return msgspec.json.decode(said, type=Verdict)


def main(path: Path, executor: ExecutorChoice, policy: str | None) -> Verdict:
    """What the other process does."""
    try:
        whole = read_served_plan(path)
        refuse_violations(whole)
        served = whole.by_bucket()
        policy = policy or policy_for(served.plan)
        chosen_for(Topology.from_plan(served.plan, served.profiles), policy)
        stages = stage_index(served.plan, served.profiles)
        # Whether shares of a core are kept is for the server to say, which has the permission.
        worker_specs(
            served.plan,
            served.profiles,
            served.folders,
            stages,
            executor,
            unenforced_shares=True,
        )
        warm_up((policy,), simulator=False, say=partial(print, file=sys.stderr))
    except HeadraceError as error:
        return Verdict(error=str(error))
    return Verdict(plan_sha256=fingerprint(whole.plan))


if __name__ == "__main__":
    plan, executor, policy = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(main(Path(plan), executor, policy or None)))
