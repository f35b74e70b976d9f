"""Content-Encoding: gzip and deflate, bounded when inflating."""

import zlib

from headrace.serving.front.http_messages import Response

COMPRESS_FROM_BYTES = 1024
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
_LEVEL = 1
"""Tensors compress little at any level; the first costs least."""


class EncodingError(Exception):
    """The body is not what its Content-Encoding says; one sentence for the client."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def inflate(body: bytes | bytearray, encoding: bytes, limit_bytes: int) -> bytes:
    """Undo a Content-Encoding, never making more than `limit_bytes`.

    Raises:
        EncodingError: unknown encoding, damaged or truncated data, or more than the limit.
    """
    window_bits = _WINDOW_BITS.get(encoding.lower())
    if window_bits is None:
        raise EncodingError("the only content encodings known here are gzip and deflate", 415)
    inflater = zlib.decompressobj(window_bits)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        name = encoding.decode("latin-1")
        raise EncodingError(f"the body is not {name} data: {error}") from error
    if len(plain) > limit_bytes:
        raise EncodingError(f"decompressed, the body is larger than {limit_bytes} bytes", 413)
    if not inflater.eof or inflater.unused_data:
        raise EncodingError("the compressed body ends too early or too late")
    return plain


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
