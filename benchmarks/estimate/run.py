"""Estimates against published block timings: nine public architectures on four GPUs.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.estimate.run [--json]

Each model is estimated twice: with the constants that Headrace ships, to which it contributed, and
with constants fitted on the other eight models (left out), which is what a model of your own gets.
The error is |published / estimated - 1| of the whole model; the bar is what the estimate states.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from benchmarks.estimate.fit import Fit, fit, start
from benchmarks.estimate.published import DATA, DEVICES, MAX_BATCH, Published, read_published
from benchmarks.reference import absent, reference_path

from headrace.profiling.devices import DEVICES as FIGURES
from headrace.profiling.estimate import joined
from headrace.profiling.estimate_error import error_fraction

LEFT_OUT_ROUNDS = 12
_VECTOR_DEVICES = ("T4", "P4", "V100")
_ORDINARY = 0.7
"""Bars up to this belong to models of ordinary convolutions."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Estimates against published block timings.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    as_json = parser.parse_args().json
    folder = reference_path(DATA)
    if folder is None:
        print(f"skipped: {absent(DATA)}")
        return 0
    models = read_published(folder)
    left_out = {
        model.name: fit([m for m in models if m is not model], rounds=LEFT_OUT_ROUNDS)
        for model in models
    }
    result = {
        "rows": [row for model in models for row in _rows(model, start(), left_out[model.name])],
        "types": _type_ratios(models, left_out),
        "unseen_devices": [_unseen(models, device) for device in _VECTOR_DEVICES],
        "calibrated": _calibrated(models, left_out),
    }
    if as_json:
        json.dump(result, sys.stdout, indent=2)
    else:
        _print(result)
    return 0


def _rows(model: Published, shipped: Fit, left_out: Fit) -> list[dict[str, Any]]:
    rows = []
    for device in DEVICES:
        true = model.seconds[device]
        ours, theirs = shipped.seconds(model, device), left_out.seconds(model, device)
        blocks = np.abs(true / theirs - 1)
        for batch in (1, MAX_BATCH):
            at = batch - 1
            rows.append(
                {
                    "model": model.name,
                    "device": device,
                    "batch": batch,
                    "published_ms": true[:, at].sum() * 1e3,
                    "shipped_ms": ours[:, at].sum() * 1e3,
                    "left_out_ms": theirs[:, at].sum() * 1e3,
                    "shipped_error": _worst_error(true[:, [at]], ours[:, [at]]),
                    "left_out_error": _worst_error(true[:, [at]], theirs[:, [at]]),
                    "worst_any_batch": _worst_error(true, theirs),
                    "block_error_p90": float(np.percentile(blocks, 90)),
                    "bar": error_fraction(joined(model.works), FIGURES[device]),
                }
            )
    return rows


def _worst_error(true: Any, estimated: Any) -> float:
    return float(np.max(np.abs(true.sum(axis=0) / estimated.sum(axis=0) - 1)))


def _type_ratios(models: Sequence[Published], left_out: dict[str, Fit]) -> list[dict[str, Any]]:
    """How much faster one device is than another, for a whole model at batch size 1."""
    rows = []
    for fast, slow in (("L4", "T4"), ("L4", "P4"), ("V100", "T4"), ("V100", "P4")):
        errors = []
        for model in models:
            found = left_out[model.name]
            true = model.seconds[slow][:, 0].sum() / model.seconds[fast][:, 0].sum()
            ours = found.seconds(model, slow)[:, 0].sum() / found.seconds(model, fast)[:, 0].sum()
            errors.append(abs(true / ours - 1))
        rows.append({"pair": f"{slow} / {fast}", **_spread(errors)})
    return rows


def _unseen(models: Sequence[Published], device: str) -> dict[str, Any]:
    """A device that had no part in the fit, with the mean sustained fraction of the others."""
    found = fit(models, [name for name in DEVICES if name != device], rounds=LEFT_OUT_ROUNDS)
    others = [
        found.devices[name].sustained_fraction or 1.0 for name in _VECTOR_DEVICES if name != device
    ]
    figures = replace(FIGURES[device], sustained_fraction=float(np.exp(np.mean(np.log(others)))))
    found = replace(found, devices={**found.devices, device: figures})
    ordinary = [m for m in models if error_fraction(joined(m.works), FIGURES[device]) <= _ORDINARY]
    errors = [_worst_error(m.seconds[device], found.seconds(m, device)) for m in ordinary]
    return {"device": device, **_spread(errors)}


def _calibrated(models: Sequence[Published], left_out: dict[str, Fit]) -> list[dict[str, Any]]:
    """Whole models and blocks on one device, knowing their measurements on another."""
    rows = []
    for known, wanted in permutations(DEVICES, 2):
        before, after, blocks_before, blocks_after = [], [], [], []
        for model in models:
            found = left_out[model.name]
            ratios = model.seconds[known] / found.seconds(model, known)
            plain, true = found.seconds(model, wanted), model.seconds[wanted]
            before.append(_worst_error(true, plain))
            after.append(_worst_error(true, plain * ratios))
            blocks_before.append(float(np.median(np.abs(true / plain - 1))))
            blocks_after.append(float(np.median(np.abs(true / (plain * ratios) - 1))))
        rows.append(
            {
                "known": known,
                "wanted": wanted,
                "plain": _spread(before),
                "calibrated": _spread(after),
                "blocks_plain": float(np.median(blocks_before)),
                "blocks_calibrated": float(np.median(blocks_after)),
            }
        )
    return rows


def _spread(errors: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(errors)), "worst": float(np.max(errors))}


def _print(result: dict[str, Any]) -> None:
    print("model               device batch  published   shipped error   left out error    bar")
    for row in result["rows"]:
        print(
            f"{row['model']:20}{row['device']:6}{row['batch']:5}"
            f"{row['published_ms']:9.1f} ms{row['shipped_ms']:9.1f} {row['shipped_error']:5.0%}"
            f"{row['left_out_ms']:10.1f} {row['left_out_error']:5.0%}{row['bar']:8.0%}"
        )
    rows = result["rows"]
    ordinary = [row for row in rows if row["bar"] <= _ORDINARY]
    for label, chosen in (("all nine", rows), ("ordinary convolutions", ordinary)):
        for kind in ("shipped", "left_out"):
            spread = _spread([row[f"{kind}_error"] for row in chosen])
            print(f"{label}, {kind}: median {spread['median']:.0%}, worst {spread['worst']:.0%}")
    outside = [row for row in rows if row["worst_any_batch"] > row["bar"]]
    pairs = {(row["model"], row["device"]) for row in outside}
    print(
        f"outside the stated bar, left out, any batch 1 to {MAX_BATCH}: {sorted(pairs) or 'none'}"
    )
    blocks = max(row["block_error_p90"] for row in ordinary)
    print(f"single blocks, ordinary convolutions: 9 of 10 within {blocks:.0%} on every device")
    print("\nhow much slower (whole model, batch 1, left out): error of the ratio")
    for row in result["types"]:
        print(f"  {row['pair']:12} median {row['median']:.0%}, worst {row['worst']:.0%}")
    print("\ndevice not in the fit, ordinary convolutions: error")
    for row in result["unseen_devices"]:
        print(f"  {row['device']:12} median {row['median']:.0%}, worst {row['worst']:.0%}")
    print("\ncalibrated on a measured device (left out): whole models; median of blocks")
    for row in result["calibrated"]:
        print(
            f"  {row['known']:5}-> {row['wanted']:5}"
            f" worst {row['plain']['worst']:5.0%} -> {row['calibrated']['worst']:5.0%},"
            f" median {row['plain']['median']:4.0%} -> {row['calibrated']['median']:4.0%};"
            f" blocks {row['blocks_plain']:4.0%} -> {row['blocks_calibrated']:4.0%}"
        )


if __name__ == "__main__":
    sys.exit(main())
