"""What a gRPC server keeps: memory and descriptors, while it answers and while streams break.

A real server answers 100,000 requests; then 1,000 streams are broken in the middle, half of them by
closing the connection. Resident memory, its peak and the descriptors of the server's process are
printed on the way: after the first tenth they should not grow. So is what a request costs the
gateway and the worker in CPU time, which other load on the machine disturbs least.

    python -m benchmarks.serving.grpc_memory [--requests 100000] [--streams 1000]
"""

import argparse
import os
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.serving import servers
from benchmarks.serving.grpc_pool import INFER, OPENING, STREAM_INFER, call, grpc_request

from headrace.serving.front.grpc import frames

AT_ONCE = 100
TARGET_RPS = 3_000
FLAT_BYTES = 4 << 20
"""Growth that an allocator's own ways explain."""


@dataclass(frozen=True, slots=True)
class Kept:
    resident_bytes: int
    peak_bytes: int
    descriptors: int

    @staticmethod
    def by(process: int) -> "Kept":
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        resident, peak = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
        return Kept(resident, peak, len(os.listdir(f"/proc/{process}/fd")))

    def __str__(self) -> str:
        mebi = 1 << 20
        return (
            f"resident {self.resident_bytes / mebi:.1f} MiB, peak {self.peak_bytes / mebi:.1f} MiB,"
            f" {self.descriptors} descriptors"
        )


def cpu_us(process: int) -> float:
    """Of it and of its children, since they began."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ticks = 0
    for number in (process, *map(int, children)):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=1_000)
    options = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.headrace_process(Path(folder), core) as (server, ready),
    ):
        _measure(server, ready["grpc_url"], options.requests, options.streams)


def _measure(server: "subprocess.Popen[str]", url: str, requests: int, streams: int) -> None:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    at = address.hostname, address.port
    process = server.pid
    tenth = max(AT_ONCE, requests // 10)
    ask_many(at, tenth)
    break_streams(at, max(2, streams // 10))
    first = Kept.by(process)
    print(f"{tenth:7} requests, {streams // 10:5} broken streams: {first}", flush=True)
    before_us = cpu_us(process)
    for number in range(1, 10):
        ask_many(at, tenth)
        print(f"{tenth * (number + 1):7} requests: {Kept.by(process)}", flush=True)
    each_us = (cpu_us(process) - before_us) / (9 * (tenth // AT_ONCE) * AT_ONCE)
    print(
        f"{each_us:.0f} us CPU per request (gateway, worker): {1e6 / each_us:.0f} req/s of one core"
        f" (target {TARGET_RPS})"
    )
    break_streams(at, streams)
    ask_many(at, AT_ONCE)
    last = Kept.by(process)
    print(f"{tenth * 10:7} requests, {streams:5} broken streams: {last}")
    grown = last.resident_bytes - first.resident_bytes
    flat = grown <= FLAT_BYTES and last.descriptors <= first.descriptors
    print(f"grown by {grown / (1 << 20):.1f} MiB: {'flat' if flat else 'NOT FLAT'}")


def ask_many(at: tuple[str, int], requests: int) -> None:
    """So many calls on one connection, `AT_ONCE` under way."""
    body = grpc_request(servers.WIDTH)
    with socket.create_connection(at, timeout=60) as connection:
        connection.sendall(OPENING)
        stream = 1
        for _ in range(requests // AT_ONCE):
            sent = b"".join(call(INFER, body, stream + 2 * k) for k in range(AT_ONCE))
            stream += 2 * AT_ONCE
            connection.sendall(sent)
            told = b""
            while told.count(b"grpc-status\x01") < AT_ONCE:
                piece = connection.recv(1 << 18)
                if not piece:
                    raise SystemExit("the server closed the connection")
                told += piece


def break_streams(at: tuple[str, int], streams: int) -> None:
    body = grpc_request(servers.WIDTH)
    for number in range(streams):
        with socket.create_connection(at, timeout=60) as connection:
            connection.sendall(OPENING + call(STREAM_INFER, body, 1, end=False))
            connection.sendall(b"".join(call(INFER, body, k) for k in (3, 5, 7)))
            connection.sendall(frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\x50half"))
            if number % 2:
                connection.sendall(b"".join(frames.reset(k, frames.CANCEL) for k in (1, 5)))
                connection.recv(1 << 16)


if __name__ == "__main__":
    main()
