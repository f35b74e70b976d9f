"""Users as containers have them."""

import os

import pytest


def without_home(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    """Be a number that is no user's of this system, and has no variables that name folders."""
    for variable in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: user)
