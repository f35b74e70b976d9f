"""JSON Schema of our records, with what their docstrings say of each field."""

import ast
import inspect
import textwrap
from fractions import Fraction
from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_schema(kinds: list[type], title: str, description: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a document that is one of these records."""
    roots, components = msgspec.json.schema_components(
        kinds, schema_hook=_fraction_schema, ref_template="#/$defs/{name}"
    )
    for component in components.values():
        if "description" in component:
            # Until Python 3.13 docstrings are indented as they stand in the source.
            component["description"] = inspect.cleandoc(component["description"])
    for kind in kinds:
        for record in _records(msgspec.inspect.type_info(kind)):
            _describe_fields(components[record.__name__], field_docs(record))
    root = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    return {
        "$schema": DIALECT,
        "title": title,
        "description": description,
        **root,
        "$defs": components,
    }


def field_docs(record: type) -> dict[str, str]:
    """Return the docstring under each field of a record, where it has one.

    >>> from headrace.domain.profile import Block
    >>> field_docs(Block)["cut_bytes"]
    "Bytes per item over that cut, at the profile's boundary precision."
    """
    [body] = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        match field, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


def _describe_fields(schema: dict[str, Any], docs: dict[str, str]) -> None:
    for name, described in schema.get("properties", {}).items():
        if name in docs:
            described["description"] = docs[name]


def _records(info: msgspec.inspect.Type) -> set[type]:
    """Return all records that `info` may hold, at any depth."""
    found: set[type] = set()
    left = [info]
    while left:
        match left.pop():
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in found:
                found.add(cls)
                left += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                left += types
            case msgspec.inspect.DictType(value_type=value):
                left.append(value)
            case msgspec.inspect.VarTupleType(item_type=item):
                left.append(item)
            case msgspec.inspect.Metadata(type=inner):
                left.append(inner)
    return found


def _fraction_schema(kind: type) -> dict[str, Any]:
    """A share travels as text, exactly."""
    if kind is Fraction:
        return {"type": ["string", "integer"], "examples": ["1", "1/2"]}
    raise NotImplementedError(f"no schema for {kind.__name__}")
