"""Mutants of Triton's configurations: each is read, or refused in one sentence; nothing else."""

import random
from pathlib import Path

from headrace.catalog.triton.config import read_config
from headrace.domain.errors import HeadraceError
from helpers.triton_repository import ensemble_config, onnx_config

QUEUE = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 } }\n"
ORIGINALS = (
    onnx_config("plus", "16", more=QUEUE),
    onnx_config("plus", "3, 224, 224", max_batch=0, more="version_policy { all { } }\n"),
    ensemble_config("plus", "16", {"a": ("a", "m"), "b": ("m", "z")}),
)
WORDS = (
    *("{", "}", "[", "]", ":", '"', "'", "\\", "\n", "#", ",", ";", "<", ">", "-1", "0", "1e999"),
    *("99999999999999999999", "0x7fffffffffffffff", "nan", "true", "KIND_GPU", "TYPE_FP32", "\0"),
    *("../../etc/passwd", "/etc/passwd", "ensemble_scheduling", "step", "input_map", "key"),
    *("default_model_filename", "[google.protobuf.Any]", "[type.googleapis.com/x.Y]", "\xff", "é"),
)


class Configs:
    """Runs cases; the same number gives the same case."""

    name = "configs"

    def __init__(self, folder: Path, seed: int) -> None:
        self._path = folder / "config.pbtxt"
        self._seed = seed

    def content(self, number: int) -> tuple[str, str, bytes]:
        """A few pieces taken out, doubled, or put in."""
        rng = random.Random(f"configs {self._seed} {number}")
        text = rng.choice(ORIGINALS)
        for _ in range(rng.randint(1, 3)):
            at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            end = min(end, at + 12)
            match rng.randrange(4):
                case 0:
                    text = text[:at] + text[end:]
                case 1:
                    text = text[:end] + text[at:end] * rng.choice((1, 1, 50)) + text[end:]
                case 2:
                    text = text[:at] + rng.choice(WORDS) + text[at:]
                case _:
                    text = text[:at] + rng.choice(WORDS) + text[end:]
        return "config", self._path.name, text.encode("latin-1", "replace")

    def run(self, number: int) -> str:
        """What became of the case.

        Raises:
            Exception: a finding.
        """
        self._path.write_bytes(self.content(number)[2])
        try:
            config = read_config(self._path, "plus")
        except HeadraceError as error:
            said = str(error)
            if not (said.startswith(f"{self._path}: ") and said.isprintable()):
                raise AssertionError(f"not one sentence: {said!a}") from error
            return "config refused"
        # Whatever is read names a file in the version's own folder.
        assert "/" not in config.file, config.file
        assert config.file.strip("."), config.file
        return "config read"
