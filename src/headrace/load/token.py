"""Which token goes to which server."""

from pathlib import Path

from headrace.load.client import parse_url
from headrace.serving.front.access import (
    AccessError,
    default_token_path,
    is_loopback,
    read_or_create_token,
)


def token_for(url: str, token_file: Path | None) -> str | None:
    """The token to send to the server at `url`, or None.

    The token in the default place opens this machine's server; it is sent nowhere else. A file
    that the user names is sent where the user says.

    Raises:
        AccessError: the file named cannot be read, or other users can.
        DocumentError: the URL is malformed.
    """
    host = parse_url(url).host
    if token_file is not None:
        return _existing(token_file)
    try:
        path = default_token_path()
    except AccessError:  # no home, and so no such place
        return None
    return read_or_create_token(path) if is_loopback(host) and path.is_file() else None


def _existing(path: Path) -> str:
    try:
        there = path.is_file()
    except OSError as error:
        raise AccessError(f"token file {path}: {error.strerror}") from error
    if not there:
        raise AccessError(f"token file {path}: there is none")
    return read_or_create_token(path)
