"""Public data to compare with: in $HEADRACE_REFERENCE, by default in `shared/reference` beside the
repository."""

import os
from pathlib import Path

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "reference"


def reference_path(part: str) -> Path | None:
    """A file or folder of the data; None: it is absent."""
    path = Path(os.environ.get("HEADRACE_REFERENCE") or _BESIDE) / part
    return path if path.exists() else None


def required_path(part: str) -> Path:
    """As `reference_path`.

    Raises:
        SystemExit: it is absent; says what is needed where.
    """
    path = reference_path(part)
    if path is None:
        raise SystemExit(absent(part))
    return path


def absent(part: str) -> str:
    """A sentence for whoever runs without it."""
    return f"the reference data is absent: set HEADRACE_REFERENCE to the folder that has {part}"
