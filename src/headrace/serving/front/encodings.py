"""Content-Encoding: gzip and deflate, bounded when inflating."""

import zlib
from concurrent.futures import Future

from headrace.serving.core.signature import InvalidError
from headrace.serving.front.http_messages import Response

COMPRESS_FROM_BYTES = 1024
_GZIP_BITS = 31
_WINDOW_BITS = {b"gzip": _GZIP_BITS, b"deflate": 15}
_ALSO = {b"x-gzip": b"gzip"}
"""Other names (RFC 9110, section 8.4.1.3)."""
_LEVEL = 1
"""Tensors compress little at any level; the first costs least."""
_MEMBERS_MAX = 4_096
"""Of one gzip body. Each costs a copy of the piece that it ends in."""
_PIECE_BYTES = 1 << 14


def inflate(body: bytes | bytearray | memoryview, encoding: bytes, limit_bytes: int) -> bytes:
    """Undo a Content-Encoding, never making more than `limit_bytes`.

    Raises:
        InvalidError: unknown encoding, damaged or truncated data, or more than the limit.
    """
    name = encoding.lower()
    window_bits = _WINDOW_BITS.get(_ALSO.get(name, name))
    if window_bits is None:
        raise InvalidError(
            "the only content encodings known here are gzip and deflate", "unknown-encoding"
        )
    inflater = zlib.decompressobj(window_bits)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
        whole, behind = inflater.eof, inflater.unused_data
        if whole and behind and window_bits == _GZIP_BITS:
            more, whole = _inflate_members(behind, limit_bytes + 1 - len(plain))
            plain, behind = plain + more, b""
    except zlib.error as error:
        raise InvalidError(f"the body is not {name.decode()} data: {error}") from error
    if len(plain) > limit_bytes:
        raise InvalidError(
            f"decompressed, the body is larger than {limit_bytes} bytes", "too-large"
        )
    if not whole or behind:
        raise InvalidError("the compressed body ends too early or too late")
    return plain


def _inflate_members(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """What further members of a gzip body hold (RFC 1952, section 2.2), and whether that is all.

    Raises:
        zlib.error: it is no such body.
    """
    view, parts, at = memoryview(body), list[bytes](), 0
    for _ in range(_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_BITS)
        while not member.eof and at < len(view) and most_bytes > 0:
            piece = view[at : at + _PIECE_BYTES]
            parts.append(member.decompress(piece, most_bytes))
            most_bytes -= len(parts[-1])
            at += len(piece) - len(member.unused_data)
        if not member.eof or at == len(view):
            return b"".join(parts), member.eof
    return b"".join(parts), False


def inflated(future: "Future[bytes]") -> bytes | InvalidError:
    """What became of `inflate` on another thread.

    An error is not raised again: it would refer to the frame that it passes, the frame to the
    future and the future to the error, and such a circle keeps a body, and the 64 MB that were made
    of it, until the collector comes by.
    """
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InvalidError):
        return error
    raise error


def wanted_encoding(accept: bytes | None) -> bytes | None:
    """The encoding to answer in, if any.

    Only a client that names exactly one gets it: HTTP libraries offer gzip and deflate by
    default, and compressing a tensor that nobody asked to have compressed costs more than
    sending it.
    """
    if accept is None:
        return None
    wanted = accept.strip().lower()
    return wanted if wanted in _WINDOW_BITS else None


def compress(response: Response, encoding: bytes) -> Response:
    """The same response in that encoding."""
    compressor = zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[encoding])
    parts = [compressor.compress(response.body)]
    parts += [compressor.compress(bytes(part)) for part in response.tail]
    parts.append(compressor.flush())
    return Response(
        response.status,
        b"".join(parts),
        content_type=response.content_type,
        headers=b"%bContent-Encoding: %b\r\n" % (response.headers, encoding),
    )
