"""Shared test set-up: `from helpers.NAME import X` works everywhere, and Hypothesis is seeded."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

_TESTS = Path(__file__).parent
sys.path.insert(0, str(_TESTS))

settings.register_profile("headrace", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("headrace")


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers: what they would otherwise all do, and at the same time."""
    # The hooks of this file are for tests alone, those of a plugin for `src` too.
    config.pluginmanager.register(_Doctests())
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _keep_bytecode()
        # OpenBLAS starts a thread per core in each of some two hundred processes that import numpy,
        # and every one looks for work for 50 ms.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        several = bool(config.getoption("numprocesses", None))
        _compile([*_kernels(), *(_planners() if several else [])], _all_tests_of(config, several))


class _Doctests:
    """To look for them takes two seconds of every worker; two files of three of `src` have none,
    and no test has one."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        looked_for = _TESTS not in file_path.parents and b">>>" in file_path.read_bytes()
        return [each for each in found if looked_for or type(each) is pytest.Module]


def _keep_bytecode() -> None:
    """Some environments turn it off: then each of some two hundred processes that tests start
    compiles the whole package first, and every xdist worker all tests."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _kernels() -> list[str]:
    """A policy per module of the dispatcher."""
    from headrace.dispatch.policies import MALLEABLE, POLICIES, PROVISIONING

    named = {**MALLEABLE, **POLICIES, **PROVISIONING}
    return list({policy.module.__name__: name for name, policy in named.items()}.values())


def _planners() -> list[str]:
    from helpers.compiled import PLANS

    return [f"{_PLAN}{name}" for name in PLANS]


def _all_tests_of(config: pytest.Config, several: bool) -> list[str]:
    """Where to collect what workers will, if pytest has kept hardly any of it yet: reading and
    rewriting all tests takes three times as long as collecting them, and each worker does both."""
    if not several or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return []
    tests = list(_TESTS.rglob("test_*.py"))
    kept = f".{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    read = sum(
        _is_newer(path.parent / "__pycache__" / f"{path.stem}{kept}", path) for path in tests
    )
    return config.args if read < len(tests) / 2 else []


def _is_newer(kept: Path, source: Path) -> bool:
    return kept.exists() and kept.stat().st_mtime >= source.stat().st_mtime


def _compile(names: list[str], collected: list[str]) -> None:
    """In a process per core, each of which takes the next name from a pipe: where nothing is kept
    yet, every one takes some ten seconds, and some take twice as long as others. The first collects
    tests before that, if there are any to collect."""
    cores = len(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    os.write(writer, b"".join(name.encode().ljust(_NAME_BYTES) for name in names))
    os.close(writer)
    compiling = [
        subprocess.Popen(
            [sys.executable, "-c", _WARM_UP, str(_NAME_BYTES), _PLAN, str(_TESTS), *first],
            stdin=reader,
        )
        for first in [collected, *[[]] * (min(cores, len(names)) - 1)]
    ]
    os.close(reader)
    for process in compiling:
        process.wait()


_NAME_BYTES = 64
"""Of equal length, so that whoever reads gets a whole one."""
_PLAN = "plan: "
_WARM_UP = """
import os, subprocess, sys
from headrace.simulation.warm_up import warm_up
size, plan, tests, *collected = int(sys.argv[1]), *sys.argv[2:]
if collected:
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *collected]
    worker = {"PYTEST_XDIST_WORKER": "none"}
    subprocess.run(collecting, env={**os.environ, **worker}, stdout=subprocess.DEVNULL)
sys.path[:0] = [tests, os.path.dirname(tests)]
while name := os.read(0, size):
    name = name.decode().strip()
    if name.startswith(plan):
        from helpers.compiled import compile_by
        compile_by(name.removeprefix(plan))
    else:
        warm_up((name,))
"""
