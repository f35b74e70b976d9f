"""Runs real networks side by side on two cores of this machine.

    python -m benchmarks.gpulets.networks [--folder .gpulets] [--budget-s 120] [--batch-sizes 1,2]

The three of the OCR app (PP-OCRv4, where rapidocr-onnxruntime is installed; its recogniser is the
demo's too), and a detector's and an encoder's layers with random weights. Profiles, pairs and the
interference document go to the folder; `benchmarks.gpulets.interference --here FOLDER/pairs.json`
tests all forms on them, and `benchmarks.gpulets.figures` draws the profiles.
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from benchmarks.live.networks import detector, encoder
from examples.ocr.networks import FILES

from headrace.catalog.documents import write_document
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.utilisation import with_utilisation

SHAPES = {"detect": (3, 320, 320), "orient": (3, 48, 192), "recognise": (3, 48, 320)}
MAX_BATCH = 8
PROFILE_S = 5.0
"""For timing each network alone."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".gpulets"))
    parser.add_argument("--budget-s", type=float, default=120.0, help="for running side by side")
    parser.add_argument("--batch-sizes", default="1,2")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    profiles = prepare(options.folder, PROFILE_S)
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "interfere"]
    command += [*map(str, profiles), "--update-profiles", "--budget-s", str(options.budget_s)]
    command += ["--batch-sizes", options.batch_sizes, "-o", str(options.folder / "document.json")]
    return subprocess.run([*command, "--pairs", str(options.folder / "pairs.json")]).returncode


def network_files(folder: Path) -> dict[str, Path]:
    """Name -> ONNX file."""
    models = {"detector": folder / "detector.onnx", "encoder": folder / "encoder.onnx"}
    detector(models["detector"])
    encoder(models["encoder"])
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        print("rapidocr-onnxruntime is not installed: without the networks of the OCR app")
    else:
        known = Path(spec.origin).parent / "models"
        models |= {name: known / file for name, file in FILES.items()}
    return models


def prepare(folder: Path, budget_s: float) -> list[Path]:
    """Profiles of the networks, measured alone on one core."""
    written = []
    for name, path in network_files(folder).items():
        shapes = {"x": SHAPES[name]} if name in SHAPES else {}
        options = ProfileOptions(
            name=name,
            blocks=1,
            max_batch=MAX_BATCH,
            stages="none",
            shapes=shapes,
            budget_s=budget_s,
            profile_folder=folder,
        )
        measured = with_utilisation(profile_model(path, options), folder, "cpu")
        target = folder / f"{name}.profile.json"
        write_document(measured, target)
        used = measured.utilisation[0]
        at = ", ".join(
            f"batch {size}: {measured.block_times[0].p50_us[0][size - 1] / 1000:.2f} ms,"
            f" l2 {used.l2[size - 1]:.2f}, dram {used.dram[size - 1]:.2f}"
            for size in (1, MAX_BATCH)
        )
        print(f"{name:16} {at}", flush=True)
        written.append(target)
    return written


if __name__ == "__main__":
    sys.exit(main())
