"""What `headrace plan` refuses of its options, and says of its problem, before it plans."""

from typing import TYPE_CHECKING

from headrace.commands.output import note
from headrace.commands.studies import check_cluster
from headrace.commands.values import given
from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    import typer

    from headrace.domain.problem import Problem

AUTO = "auto"
"""A margin that simulation chooses."""

UNIFORM = "uniform"


def note_left_out(problem: "Problem") -> None:
    """Warn of what a plan may promise too much by."""
    _note_unmeasured(problem)
    _note_neighbours(problem)


def _note_unmeasured(problem: "Problem") -> None:
    """Of profiles."""
    for model, profile in problem.profiles.items():
        if profile.provenance.kind == "measured" and not profile.gateway_us:
            note(
                f"the profile of {model!r} does not say what a request takes the gateway, as it was"
                " not measured: a server may answer far fewer requests/s than the plan promises;"
                " `headrace profile` it again"
            )


def _note_neighbours(problem: "Problem") -> None:
    """Of what the problem states, and a baseline does not count."""
    from headrace.planning import IGNORE_NEIGHBOURS, uncounted_neighbours

    planner, device = problem.options.planner, uncounted_neighbours(problem)
    if device is not None and planner in IGNORE_NEIGHBOURS:
        note(
            f"planner {planner!r} does not count what models on parts of one {device!r} cost each"
            " other, by design: `headrace simulate --interference` shows what comes of it"
        )


def check_simulations(context: "typer.Context") -> None:
    """Refuse options of simulations where none is to be run, and an attainment that is no part.

    Raises:
        DocumentError: such an option is given.
    """
    options = context.params
    check_cluster(options["cluster"], options["address"])
    by_margin, by_arrivals = options["margin"] == AUTO, options["arrivals"] != UNIFORM
    if not by_margin and (options["jobs"] > 1 or options["cluster"] is not None):
        raise DocumentError(
            f"{'--jobs' if options['cluster'] is None else '--cluster'}: is for the simulations of"
            f" --margin {AUTO}; leave it out, or add --margin {AUTO}"
        )
    if not given(context, "attainment"):
        return
    if not (by_margin or by_arrivals):
        raise DocumentError(
            "plan: --attainment does nothing here: only plans that are simulated are held to it\n"
            f"  try       --margin {AUTO} for models, --arrivals poisson for apps; or leave it out"
        )
    if not 0 < options["attainment"] < 1:
        raise DocumentError(
            f"--attainment {options['attainment']:g}: is the part of requests to answer in time,"
            " above 0 and below 1, such as 0.99"
        )
