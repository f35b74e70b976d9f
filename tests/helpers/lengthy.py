"""Cases of a parametrised test of which `make test-all` runs some, since they take longest."""

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def with_lengthy(every: Iterable[object], *, lengthy: Container[object]) -> "list[ParameterSet]":
    """Of values, or of tuples where a test takes several."""
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=pytest.mark.lengthy if each in lengthy else (),
        )
        for each in every
    ]
