"""Options that are parts of others: alone they would do nothing, and that is refused."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.commands.values import given
from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    import typer


def refuse_alone(context: "typer.Context", of_others: Mapping[str, tuple[str, ...]]) -> None:
    """
    Args:
        of_others: option -> those of which it is part, by their parameters' names.

    Raises:
        DocumentError: one is given without any of them.
    """
    for name, others in of_others.items():
        if given(context, name) and not any(context.params[other] for other in others):
            wanted = " or ".join(map(option, others))
            raise DocumentError(
                f"{context.info_name}: {option(name)} does nothing without {wanted}"
            )


def option(name: str) -> str:
    """As a user types it.

    >>> option("secret_file")
    '--secret-file'
    """
    return "--" + name.replace("_", "-")
