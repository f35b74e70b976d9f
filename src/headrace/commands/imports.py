"""`headrace import`: a command per system whose files we read."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from headrace.commands.on_demand import OnDemand


class _Imports(OnDemand):
    TABLE: ClassVar[Mapping[str, str]] = {"triton": "import_triton", "ppipe": "import_ppipe"}


imports = typer.Typer(
    name="import", cls=_Imports, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
)


@imports.callback()
def read_others() -> None:
    """Read other systems' models, problems and plans."""
