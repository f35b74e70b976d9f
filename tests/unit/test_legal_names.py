"""A name that is not legal is refused with what would be."""

import re
from collections.abc import Callable

import pytest

from headrace.domain.base import LEGAL_NAME
from headrace.domain.cluster import DeviceType, Node
from headrace.domain.errors import HeadraceError
from helpers.problems import make_profile

NAMED: dict[str, Callable[[], object]] = {
    "device type": lambda: DeviceType(name="gpü"),
    "node": lambda: Node(name="räck", devices={"cpu": 1}),
    "model": lambda: make_profile("modèle"),
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED)
def test_a_name_that_is_not_legal_is_refused_with_what_would_be(
    make: Callable[[], object],
) -> None:
    with pytest.raises(HeadraceError, match=re.escape(LEGAL_NAME)):
        make()
