"""Content-Encoding: gzip and deflate, bounded when inflating."""

import zlib
from concurrent.futures import Future

from headrace.serving.core.signature import InvalidError
from headrace.serving.front.http_messages import Response

COMPRESS_FROM_BYTES = 1024
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
_ALSO = {b"x-gzip": b"gzip"}
"""Other names (RFC 9110, section 8.4.1.3)."""
_LEVEL = 1
"""Tensors compress little at any level; the first costs least."""


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
    except zlib.error as error:
        raise InvalidError(f"the body is not {name.decode()} data: {error}") from error
    if len(plain) > limit_bytes:
        raise InvalidError(
            f"decompressed, the body is larger than {limit_bytes} bytes", "too-large"
        )
    if not inflater.eof or inflater.unused_data:
        raise InvalidError("the compressed body ends too early or too late")
    return plain


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
