"""ModelInferRequest before it is parsed, ModelInferResponse as it is written: the parts that are
large.

A message is fields one after the other: a tag (number and kind), perhaps a length, the value.
Walking over the outermost ones costs little and shows which bytes are tensors
(`raw_input_contents`): these stay where they are, and only the rest is parsed. It also bounds
what parsing could take: so many fields, so many bytes of them.
"""

from dataclasses import dataclass

from headrace.serving.core.signature import InvalidError

FIELDS_MAX = 4096
_MODEL, _ID, _PARAMETERS, _RAW = 1, 3, 4, 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class Parts:
    """One request, taken apart."""

    model: str
    id: str
    """The client's own, which even a refusal gives back."""
    head: bytes | bytearray | memoryview
    """The same message without the raw contents."""
    raw: list[memoryview]
    has_parameters: bool


def take_apart(message: bytes | bytearray, head_bytes_max: int) -> Parts:
    """
    Raises:
        InvalidError: it is not made of fields, or of too many.
    """
    view = memoryview(message)
    raw: list[memoryview] = []
    kept: list[memoryview] = []
    kept_from = at = fields = 0
    model, name, has_parameters = b"", b"", False
    try:
        while at < len(view):
            start = at
            tag, at = _varint(view, at)
            number, kind = tag >> 3, tag & 7
            fields += 1
            if fields > FIELDS_MAX or not number:
                break
            if kind == _BYTES:
                length, begin = _varint(view, at)
                at = begin + length
                if at > len(view):
                    break
                if number == _RAW:
                    raw.append(view[begin:at])
                    if start > kept_from:
                        kept.append(view[kept_from:start])
                    kept_from = at
                elif number == _MODEL:
                    model = bytes(view[begin:at])
                elif number == _ID:
                    name = bytes(view[begin:at])
                elif number == _PARAMETERS:
                    has_parameters = True
            elif kind == _VARINT:
                _, at = _varint(view, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                break
        else:
            if at == len(view):
                kept.append(view[kept_from:])
                head = kept[0] if len(kept) == 1 else b"".join(kept)
                if len(head) > head_bytes_max:
                    raise InvalidError(
                        f"the message has {len(head)} bytes besides raw contents, the most is"
                        f" {head_bytes_max}; send large tensors as raw_input_contents",
                        "too-large",
                    )
                return Parts(model.decode(), name.decode(), head, raw, has_parameters)
    except (IndexError, UnicodeDecodeError) as error:
        raise InvalidError("the message is no ModelInferRequest: it is cut off") from error
    if fields > FIELDS_MAX:
        raise InvalidError(f"the message has more than {FIELDS_MAX} fields", "too-large")
    raise InvalidError("the message is no ModelInferRequest")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """(value, where it ends)."""
    byte = view[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def varint(value: int) -> bytes:
    """
    >>> varint(5), varint(300)
    (b'\\x05', b'\\xac\\x02')
    """
    if value < 128:
        return bytes((value,))
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def field_head(number: int, size: int) -> bytes:
    """What stands before a field of so many bytes."""
    return bytes((number << 3 | _BYTES,)) + varint(size)
