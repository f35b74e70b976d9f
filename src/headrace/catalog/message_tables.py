"""Protobuf messages from tables of names, numbers and types, without a compiler or generated code.

Each row is a message: `field number type`, `*` for repeated, `{type}` for a map from text,
`{key:type}` for one from other keys, `|` for one of several. Names of messages and enums begin with
a capital and do not end with a digit.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]

_Field = descriptor_pb2.FieldDescriptorProto
_CHOICE = "parameter_choice"


def message_pool(
    package: str, messages: Mapping[str, str], enums: Mapping[str, str], syntax: str = "proto3"
) -> Any:
    """A pool of their own: a program may have other copies of the same names.

    Args:
        enums: name -> its values, from 0.
        syntax: in proto2 it is known of each field whether it was given.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"headrace/{package}.proto", package=package, syntax=syntax
    )
    for name, values in enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for row in filter(None, fields.split(", ")):
            _add_field(package, enums, message, *row.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(
    package: str, enums: Mapping[str, str], message: Any, name: str, number: str, kind: str
) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind[0] == "{":
        key, _, value = kind[1:-1].rpartition(":")
        entry = message.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add_field(package, enums, entry, "key", "1", key or "string")
        _add_field(package, enums, entry, "value", "2", value)
        kind = f"*{message.name}.{entry.name}"
    elif kind[0] == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_CHOICE)
        field.oneof_index = 0
    if kind[0] == "*":
        field.label = _Field.LABEL_REPEATED
    kind = kind.lstrip("*|")
    if kind.islower() or kind[-1].isdigit():
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    else:
        field.type = _Field.TYPE_ENUM if kind in enums else _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
