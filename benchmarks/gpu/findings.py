"""What the parts of `check` say: one JSON line per finding."""

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEVICE = os.environ.get("DEVICE", "cuda")
"""With DEVICE=cpu in the environment the same code runs on a CPU, which is how it was tried."""


def say(what: str, state: str, figures: str = "") -> None:
    print(json.dumps([what, state, figures]), flush=True)


@contextmanager
def finding(what: str) -> Iterator[Callable[[bool, str], None]]:
    """Says `what` was found; an exception is a failure with its words, and where it was raised goes
    to standard error."""

    def found(good: bool, figures: str) -> None:
        say(what, "ok" if good else "FAILED", figures)

    try:
        yield found
    except Exception as error:
        traceback.print_exc()
        lines = [*str(error).strip().splitlines(), ""]
        say(what, "FAILED", f"{type(error).__name__}: {lines[0][:200]}")
