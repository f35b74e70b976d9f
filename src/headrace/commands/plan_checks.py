"""What `headrace plan` refuses of its options before anything is planned."""

from typing import TYPE_CHECKING

from headrace.commands.studies import check_cluster
from headrace.commands.values import given
from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    import typer

AUTO = "auto"
"""A margin that simulation chooses."""

UNIFORM = "uniform"


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
