"""The small, safe part of YAML that problem files use: maps, lists and plain values.

PyYAML only composes the node tree; values are built here, so that no tag can name a Python type,
no field can be given twice, and no alias can expand without end.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.catalog.source import MAX_WHOLE, PathKey, Source, shortened
from headrace.domain.errors import DocumentError

MAX_YAML_BYTES = 1024 * 1024
"""Problems are written by hand; YAML costs much more to parse than JSON."""

MAX_VALUES = 100_000
"""Values in one document, after aliases are expanded."""

_TAG = "tag:yaml.org,2002:"
# What PyYAML resolves plain text to; anything else was written with `!`.
_PLAIN_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "timestamp")}
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?")
# Stricter than YAML 1.1, where `no` is false, `1:30` is 90 and `010` is 8.
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def parse_yaml(path: Path, text: str) -> Source:
    """Parse one YAML document.

    Raises:
        DocumentError: it is not YAML, or uses a part of YAML that is refused here.
    """
    if len(text) > MAX_YAML_BYTES:
        raise DocumentError(
            f"{path}: is too large for YAML\n"
            f"  allowed  {MAX_YAML_BYTES:,} characters\n"
            f"  try      the same document as JSON"
        )
    builder = _Builder(path)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = None if root is None else builder.build(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise DocumentError(f"{path}{where}: is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{path}: is not YAML: {error}") from error
    except RecursionError as error:
        raise DocumentError(f"{path}: is nested too deeply") from error
    return Source(path, data, builder.lines.get)


@dataclass(slots=True)
class _Builder:
    """Turns nodes into values and remembers their lines."""

    path: Path
    lines: dict[tuple[PathKey, ...], int] = field(default_factory=dict)

    def build(self, node: yaml.Node, keys: tuple[PathKey, ...]) -> Any:
        if len(self.lines) >= MAX_VALUES:
            raise self._refuse(node, f"expands to more than {MAX_VALUES:,} values")
        self.lines[keys] = node.start_mark.line + 1
        match node:
            case yaml.MappingNode() if node.tag == _TAG + "map":
                return self._map(node, keys)
            case yaml.SequenceNode() if node.tag == _TAG + "seq":
                return [self.build(item, (*keys, i)) for i, item in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node)
        raise self._refuse(node, f"has the tag {node.tag!r}; write plain values only")

    def _map(self, node: yaml.MappingNode, keys: tuple[PathKey, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, value in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise self._refuse(name_node, "has a field whose name is not plain text")
            name = self._text(name_node)
            if name_node.tag == _TAG + "merge":
                raise self._refuse(name_node, "merges with `<<`; write the fields out")
            if name in result:
                raise self._refuse(name_node, f"field {name!r} is given twice in one map")
            result[name] = self.build(value, (*keys, name))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = self._text(node)
        if node.style in ("'", '"', "|", ">"):
            return text
        if node.tag not in _PLAIN_TAGS:
            raise self._refuse(node, f"has the tag {node.tag!r}; write plain values only")
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            whole = int(text)
            if not -MAX_WHOLE <= whole <= MAX_WHOLE:
                raise self._refuse(node, f"{shortened(text)} is too large for a whole number")
            return whole
        if _FLOAT.fullmatch(text):
            value = float(text)
            if not math.isfinite(value):
                raise self._refuse(node, f"{text} is too large for a number")
            return value
        if text.lower().lstrip("+-") in {".nan", ".inf"}:
            raise self._refuse(node, f"{text} is not a number that a document may hold")
        return text

    def _text(self, node: yaml.ScalarNode) -> str:
        """Its text, with the halves joined of a character that JSON escapes in two."""
        text: str = node.value
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise self._refuse(node, "holds a lone surrogate, which is no character") from error

    def _refuse(self, node: yaml.Node, why: str) -> DocumentError:
        return DocumentError(f"{self.path}, line {node.start_mark.line + 1}: {why}")
