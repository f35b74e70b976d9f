"""The one base of all documents: frozen, keyword-only, unknown fields refused."""

import re
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Names of models, nodes, devices and tensors that become part of a path or URL."""
LEGAL_NAME = "1 to 128 of the characters A-Z a-z 0-9 . _ -, a letter or digit first"

Version = Annotated[int, Meta(ge=1, le=1 << 53)]
"""Of a model, as clients know it: a whole number, as in Triton's repositories."""

MOST_PRIORITY = 1_000_000

Priority = Annotated[int, Meta(ge=0, le=MOST_PRIORITY)]
"""Of requests: smaller is served first."""

_NAME = re.compile(NAME_PATTERN)

LEAST_RATE_RPS, MOST_RATE_RPS = 1e-6, 1e9
"""Of a model or an app; less is a request in eleven days, and no number to plan with."""
RATES = f"a rate from {LEAST_RATE_RPS:g} to {MOST_RATE_RPS:g} requests/s"

# Bounded digits and no exponent: Fraction("1e999999999") would fill the memory.
_FRACTION = re.compile(r"[0-9]{1,9}(/[0-9]{1,9}|\.[0-9]{1,9})?")


JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not the JSON asked for."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the domain types. Documents are records too: what is in memory is what is on disk.

    Subclasses repeat `frozen=True, kw_only=True`: neither type checkers nor msgspec inherit them.
    """


def is_name(text: str) -> bool:
    """Whether `text` may name a model, node or device.

    >>> is_name("resnet50-v1.5"), is_name("../etc/passwd"), is_name("")
    (True, False, False)
    """
    return _NAME.match(text) is not None and not text.endswith("\n")


def host_port(host: str, port: int) -> str:
    """An address as URLs have it and people read it.

    >>> host_port("10.0.0.1", 7070), host_port("fd00::5", 7070)
    ('10.0.0.1:7070', '[fd00::5]:7070')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_fraction(value: Any) -> str:
    """msgspec `enc_hook`: a share travels as text, exactly ("1/3")."""
    if isinstance(value, Fraction):
        return str(value)
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def decode_fraction(kind: type, value: Any) -> Any:
    """msgspec `dec_hook`: the inverse of `encode_fraction`; whole numbers are accepted too."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if kind is Fraction and _FRACTION.fullmatch(text):
        try:
            return Fraction(text)
        except ZeroDivisionError as error:
            raise ValueError(f'Expected a fraction such as "1/2", got {value!r}') from error
    raise ValueError(f'Expected a fraction such as "1/2", got {value!r}')
