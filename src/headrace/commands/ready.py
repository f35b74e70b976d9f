"""What people read when a server is ready."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from headrace.commands.output import console, labelled, next_step, print_line, quoted

if TYPE_CHECKING:
    from headrace.domain.plan import Plan


def print_ready(
    plan: "Plan",
    urls: list[str],
    token_path: Path | None,
    levels: Mapping[str, float],
    apps: tuple[str, ...] = (),
) -> None:
    """Plan, addresses, token, and what to do next."""
    from headrace.reporting.plan_table import ready_table

    console.print(ready_table(plan, levels))
    url = quoted(urls[0])
    listening = Text.assemble("listening on ", (" and ".join(urls), "bold"))
    console.print(listening, soft_wrap=True)
    if token_path is not None:
        labelled("token for other users:  ", str(token_path))
    # No rate: the server says what the problem asks, of all that it serves.
    words = ["headrace load", url, *(f"--input {app}=EXAMPLE.npy" for app in apps)]
    if urls[0].startswith("https:"):
        words.append("--tls-ca CA.pem   (who signed its certificate, unless the system knows)")
    next_step(" ".join(words))


def print_ready_line(addresses: Mapping[str, str], token_path: Path | None) -> None:
    """The same for scripts, in one line of JSON.

    Args:
        addresses: of the fronts, by name.
    """
    import msgspec

    token_file = None if token_path is None else str(token_path)
    ready = {"ready": True, "url": addresses["http"], "token_file": token_file}
    ready |= {"admin_socket": addresses["admin"], "grpc_url": addresses.get("grpc")}
    print_line(msgspec.json.encode(ready))
