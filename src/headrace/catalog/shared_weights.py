"""What workers know of stages with one file of weights between them; `shared_stages` makes these.

A file of its own, since every worker is a process that starts: what reads documents and cuts models
took it as long to import as all else that is ours.
"""

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.base import Record

WEIGHTS = "shared-weights.bin"
HASHES = "hashes.json"

NOT_WRITTEN = 3
"""Status of a maker whose folder takes no more; it then prints the system's error number."""


class SharedWeightsMaker(Record, frozen=True, kw_only=True):
    """What makes such stages: a module that is run with the folder of the new entry and, on its
    standard input, a JSON object: name -> path of a stage. Its status is 0, `NOT_WRITTEN`, or
    another where the model cannot be saved so."""

    module: str
    distributions: tuple[str, ...]
    """Of the library that optimises; the first that is installed says the version."""


def is_shared(weights: ExternalWeights | None) -> bool:
    """Whether these are of stages made so."""
    return weights is not None and weights.names == (WEIGHTS,)
