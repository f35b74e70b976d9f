"""The apps' process: loads the app files, and runs their functions for the gateway.

Started as `python -m headrace.serving.apps.process`, with two sockets inherited: frames, and signs
of life. It ends when the gateway says Stop, or is gone. What the apps print goes to standard error.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.children import die_with_parent
from headrace.domain.errors import HeadraceError
from headrace.serving.apps.files import describe, functions_of, load_files
from headrace.serving.apps.frames import AnyFrame, FromGateway, Link, NotReady, Ready, Stop, Tensors
from headrace.serving.apps.frames import encode as encode_frame
from headrace.serving.apps.runner import FunctionRunner
from headrace.serving.apps.threads import AsideThreads
from headrace.serving.apps.watchdog import Watchdog
from headrace.serving.server_log import log_to_stderr
from headrace.serving.workers.affinity import keep_on
from headrace.serving.workers.worker import wake_on_time

CLEAN_UP_S = 1.0
SWITCH_S = 0.001
"""How long a thread may keep the loop waiting while it runs Python code; the default is 5 ms."""
_NICENESS = 2
"""Gives way to the gateway, and workers give way to it."""

MakeRunner = Callable[[Callable[[AnyFrame, Tensors], None]], FunctionRunner]

logger = logging.getLogger("headrace.apps")


def main() -> None:
    parser = argparse.ArgumentParser(prog="headrace-apps")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--watch", type=int, required=True, help="descriptor for signs of life")
    parser.add_argument("--parent", type=int, required=True, help="process id of the gateway")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", required=True, help="CPU cores that it may use: 0,1")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(options.parent)
    wake_on_time()
    keep_on({int(core) for core in options.cores.split(",")})
    os.nice(_NICENESS)
    os.dup2(2, 1)
    log = log_to_stderr()
    # Which shows every line at once; standard output would keep them in a buffer.
    sys.stdout = sys.stderr
    sys.setswitchinterval(SWITCH_S)
    channel = socket.socket(fileno=options.channel)
    watch = socket.socket(fileno=options.watch)
    _keep_from_children(channel, watch)
    try:
        loaded = load_files(options.files)
        ready = Ready(describe(loaded))
        functions = functions_of(loaded)
    except HeadraceError as error:
        channel.sendall(b"".join(encode_frame(NotReady(str(error)[:4000]))))
        return
    channel.sendall(b"".join(encode_frame(ready)))
    threads = AsideThreads(options.threads)
    _serve(channel, watch, threads, lambda send: FunctionRunner(functions, send, threads))
    try:
        sys.stdout.flush()
    finally:
        log.drain()
        # Threads of app code must not keep the process.
        os._exit(0)


def _keep_from_children(*ours: socket.socket) -> None:
    """A process that an app starts would hold them open when this one has ended: to the gateway
    they say that it lives."""

    def close() -> None:
        for held in ours:
            if held.fileno() != -1:
                # Not `held.close()`, which waits for the loop that uses it.
                os.close(held.detach())

    for held in ours:
        held.set_inheritable(False)
    os.register_at_fork(after_in_child=close)


def _serve(
    channel: socket.socket, watch: socket.socket, threads: AsideThreads, make_runner: MakeRunner
) -> None:
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    Watchdog(loop, threads, watch).start()
    serving = loop.create_task(_answer(channel, make_runner))
    while not serving.done():
        try:
            loop.run_until_complete(serving)
        except (SystemExit, KeyboardInterrupt) as ended:
            # From a task that a function started: loops let these through. The function gets it.
            logger.error("an app's code raised %s(%s); going on", type(ended).__name__, ended)


async def _answer(channel: socket.socket, make_runner: MakeRunner) -> None:
    stopped = asyncio.Event()

    def on_frame(frame: AnyFrame, tensors: Tensors) -> None:
        if isinstance(frame, Stop):
            stopped.set()
        elif isinstance(frame, FromGateway):
            runner.receive(frame, tensors)

    link = Link(on_frame, lambda reason: stopped.set())
    runner: FunctionRunner = make_runner(link.send)
    channel.setblocking(False)
    asyncio.get_running_loop().set_exception_handler(say_unless_cancelled)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=channel)
    await stopped.wait()
    await runner.stop(CLEAN_UP_S)
    link.close()


def say_unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody took from a future goes to the log, but for its having been cancelled: at its
    deadline a function is, with whatever it waits for, and of a `gather` in a `wait_for` that would
    be said of every request."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


if __name__ == "__main__":
    main()
