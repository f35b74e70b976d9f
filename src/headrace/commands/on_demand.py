"""Commands that are imported when they are asked for: each costs milliseconds that others need not.

A program's table says where every command is; names are known at once, and whatever looks at a
command (its own run, `--help`, completion, the reference in docs) imports that one.
"""

import inspect
import os
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from headrace.commands.values import read_plainly

WITHOUT_NUMPY = frozenset({"nodes", "topology", "migrate", "trace", "schema"})
"""Commands that need no arrays."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class OnDemand(TyperGroup):
    """A group whose commands are those of `TABLE`: name -> module of `commands`, and function."""

    TABLE: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.TABLE, self.commands)

    def get_params(self, ctx: Any) -> list[Any]:
        return read_plainly(super().get_params(ctx))


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return read_plainly(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        if self.name not in WITHOUT_NUMPY:
            _import_numpy()
        return super().invoke(ctx)


def _import_numpy() -> None:
    """Without a thread per core for matrices, of which we multiply none.

    OpenBLAS starts them when it is loaded, and each looks for work for 50 ms: as long as the whole
    import takes. What this process starts, apps say, inherits nothing of it.
    """
    given = BLAS_THREADS in os.environ
    os.environ.setdefault(BLAS_THREADS, "1")
    import numpy  # noqa: F401

    if not given:
        del os.environ[BLAS_THREADS]


class _Commands(MutableMapping[str, Any]):
    def __init__(self, table: Mapping[str, str], others: Mapping[str, Any]) -> None:
        """
        Args:
            others: commands that are there already.
        """
        self._where = {**table, **dict.fromkeys(others, "")}
        self._built: dict[str, Any] = dict(others)

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _command(name, self._where[name])
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._where.setdefault(name, "")
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._where[name]
        self._built.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def flowing(docstring: str) -> str:
    """A docstring whose paragraphs a terminal may break where it ends, not where the source does.

    >>> flowing('''Do it.
    ...
    ...     For teams that
    ...     do it often.
    ... ''')
    'Do it.\\n\\nFor teams that do it often.'
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _command(name: str, where: str) -> Any:
    found = getattr(import_module(f"headrace.commands.{where}"), where)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
        )
        alone.command(name, cls=_Command, help=flowing(found.__doc__ or ""))(found)
        found = alone
    return typer.main.get_command(found)
