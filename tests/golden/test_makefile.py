"""What `make` asks of a fresh machine is what the package asks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def made(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """`make demo` with a Python that says it is of this version, and fails at anything else."""
    python = folder / "python3"
    python.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "if sys.argv[1] != '-c':\n"
        "    sys.exit('a virtual environment')\n"
        f"sys.version, sys.version_info = {version!r}, tuple(map(int, {version!r}.split('.')))\n"
        "exec(sys.argv[2])\n"
    )
    python.chmod(0o755)
    arguments = ["make", "demo", f"PYTHON={python}", f"VENV={folder}/venv"]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_python_that_is_too_old_is_named_with_what_to_do_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    needed = re.fullmatch(r">=3\.(\d+)", PACKAGE["requires-python"])
    assert needed is not None

    refused = made(tmp_path, f"3.{int(needed[1]) - 1}.4")
    assert f"needs Python 3.{needed[1]} or newer" in refused.stderr
    assert "PYTHON=" in refused.stderr
    assert "a virtual environment" not in refused.stderr

    assert "a virtual environment" in made(tmp_path, f"3.{needed[1]}.0").stderr
