"""The demo's whole story, told once for all tests that look at what it leaves."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    folder: Path
    """With all its files; those of the OCR app are in `ocr`."""
    exit_code: int
    said: str


def tell_demo(folder: Path, cache: Path) -> Demo:
    """Not with the user's cache of profiles: what ran before would decide what it does."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.run", "--quick", "--folder", folder],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HEADRACE_CACHE": str(cache)},
        timeout=1_800,  # only a hang takes so long
    )
    return Demo(folder=folder, exit_code=done.returncode, said=done.stdout)
