"""Starts of models that are not in a GPU's memory: `make gpu-check PART=provision`.

    PYTHONPATH=tests python -m benchmarks.gpu.provision FOLDER  (DEVICE=cpu: one of memory)

For networks of the sizes of BERT-Base, RoBERTa-Base, GPT-2 (without its head) and ResNet-50, with
random weights, at the sequence lengths of DeepPlan's measurements:

1. layers     as `headrace profile --layers` measures them
2. starts     on demand, PipeSwitch, direct host access (Algorithm 1), exact, each the best for the
              medians of the layers: in turn, median, beside what the timeline predicts
3. answers    of every start against the network's own
4. many       100 instances with memory for 30 of them, Poisson arrivals, the one unused for longest
              leaves: in this process, one request at a time, in the same ways
5. served     six models with memory for three, by the commands (`served_starts`)

The figures of a CPU say nothing but that the code runs.
"""

import gc
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf, isnan
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command_line import new_parser
from benchmarks.gpu.findings import DEVICE, finding
from benchmarks.gpu.served_starts import served

from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.percentiles import percentile
from headrace.executors.base import StageStart
from headrace.executors.streams import LayerDevice
from headrace.planning.provisioning.planners import plan_start
from headrace.planning.provisioning.residency import stated as residency
from headrace.profiling.moving_layers import FORGOTTEN, stated
from headrace.starts import chain_of, choice_of, timeline

ROUNDS = 10
TOLERANCE = 1e-3
SPOILT = 0xFF
"""Four such bytes are no number."""
WAYS = {
    "on demand": "on-demand",
    "PipeSwitch": "pipeswitch-grouped",
    "direct host access": "deepplan",
    "exact": "exact",
}
TARGETS = {"bert-base": 1.28, "roberta-base": 1.45, "gpt2": 1.44}
"""Direct host access over PipeSwitch."""
INSTANCES, IN_MEMORY = 100, 30
REQUESTS, RATE_RPS, SLO_MS = 300, 40.0, 100


class Network(NamedTuple):
    """One, in host memory."""

    name: str
    given: Any
    input: str
    answer: Any
    moving: Any
    """Its `torch_moving.TorchMoving`."""
    layers: tuple[Layer, ...]

    @property
    def host(self) -> Any:
        return self.moving.host


def small_networks() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The same shapes, small: what a CPU is tried with."""
    import torch

    from helpers.torch_networks import network, transformer

    return {
        "bert-base": (
            lambda: transformer(words=300, layers=2, width=64, heads=2),
            lambda: torch.randint(0, 300, (1, 16)),
        ),
        "resnet50": (lambda: network("small"), lambda: torch.randn(1, 3, 64, 64)),
    }


def paper_networks() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Name -> network, inputs."""
    import torch

    from helpers.torch_networks import network, transformer

    def ids(words: int, length: int) -> Callable[[], Any]:
        return lambda: torch.randint(0, words, (1, length))

    return {
        "bert-base": (lambda: transformer(30522, 512), ids(30522, 384)),
        "roberta-base": (lambda: transformer(50265, 514), ids(50265, 384)),
        "gpt2": (lambda: transformer(50257, 1024, causal=True), ids(50257, 1024)),
        "resnet50": (lambda: network("resnet50"), lambda: torch.randn(1, 3, 224, 224)),
    }


def opened(
    name: str, make: Callable[[], Any], inputs: Callable[[], Any], folder: Path, device: LayerDevice
) -> Network:
    """Exported, and taken into host memory, layer by layer."""
    import torch

    from headrace.executors.torch_moving import TorchMoving
    from helpers.torch_networks import export

    torch.manual_seed(0)
    module, given = make().eval(), inputs()
    with torch.inference_mode():
        answer = module(given)
    # One item is an example that exports fix the batch at.
    path = export(module, torch.cat([given, given]), folder / f"{name}.pt2")
    graph = load_graph(path)
    moving = TorchMoving(whole_model(graph), graph.weights, device)
    layers = tuple(
        Layer(name=each, weights_bytes=size)
        for each, size in zip(moving.names, moving.weights_bytes, strict=True)
    )
    answers = answer if isinstance(answer, tuple) else (answer,)
    return Network(name, given, graph.inputs[0].name, answers, moving, layers)


def started(network: Network, planned: Any) -> StageStart:
    return StageStart(
        layers=network.host.names,
        host=planned.host,
        transfers=tuple(transfer.layers for transfer in planned.transfers),
        waits_for_all=planned.waits_for_all,
    )


def once(network: Network, start: StageStart) -> tuple[float, Any, Any]:
    """Seconds from nothing on the device to the answer, the answer, and what is there then."""
    import torch

    from headrace.executors.torch_layers import ResidentModel

    device = network.host.device
    began = time.perf_counter()
    resident = ResidentModel(network.host, start)
    with torch.inference_mode(), device.execution.current():
        given = network.given.to(device.name, non_blocking=True)
        here = [tensor.cpu() for tensor in resident.run([given])]
    return time.perf_counter() - began, here, resident


def spoil(device: LayerDevice, size_bytes: int) -> None:
    """Fill what the device gives next for so much: a start that does not wait for its copies would
    find the same weights there, as the start before left them, and answer right."""
    memory = device.allocate(size_bytes)
    with device.loading.current():
        memory.fill_(SPOILT)
    device.loading.mark().wait()
    device.give_back(memory)


def measured(network: Network, rounds: int = ROUNDS) -> LayerTimes:
    """What its layers take, as `headrace profile --layers` says."""
    feeds = {network.input: network.given.numpy()}
    for _ in range(FORGOTTEN):
        network.moving.once(feeds)
    visits = [network.moving.once(feeds) for _ in range(rounds)]
    return stated("cuda", network.layers, visits)


def _us(seconds: float) -> int:
    return max(1, round(seconds * 1e6))


def check_starts(network: Network, rounds: int = ROUNDS) -> dict[str, StageStart]:
    """Measure its layers, plan, start in each way; the starts."""
    times = measured(network, rounds)
    with finding(f"{network.name}: layers, p50") as found_:
        size, copied = sum(n.weights_bytes for n in network.layers), sum(times.load_p50_us)
        parts = ", ".join(
            f"{sum(row) / 1e3:.2f} ms {what}"
            for what, row in (
                ("to copy", times.load_p50_us),
                ("in memory", times.inside_p50_us),
                ("from the host", times.host_p50_us),
            )
        )
        found_(
            True,
            f"{parts} ({size / copied / 1e3:.1f} GB/s, {max(times.saved_us)} us a call); a start"
            f" takes {times.open_p50_us / 1e3:.2f} / {times.open_p99_us / 1e3:.2f} ms beside (p50,"
            " p99)",
        )
    chain = chain_of(times, median=True)
    planned = {
        way: residency(network.layers, times, plan_start(planner, chain), planner)
        for way, planner in WAYS.items()
    }
    starts = {way: started(network, each) for way, each in planned.items()}
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    worst = 0.0
    for visit in range(rounds + 1):
        for way, start in starts.items():
            spoil(network.host.device, network.host.layout(start).size_bytes)
            seconds, found, resident = once(network, start)
            resident.leave()
            worst = max(worst, *(_error(a, b) for a, b in zip(found, network.answer, strict=True)))
            if visit:
                took[way].append(seconds)
    told = {
        way: (
            times.open_p50_us
            + timeline(
                chain, choice_of(each, chain.count), waits_for_all=each.waits_for_all
            ).total_us
        )
        / 1e3
        for way, each in planned.items()
    }
    median = {way: statistics.median(each) * 1e3 for way, each in took.items()}
    gain = median["PipeSwitch"] / median["direct host access"]
    target = TARGETS.get(network.name)
    figures = ", ".join(
        f"{way} {ms:.2f} ms ({told[way]:.2f} predicted)" for way, ms in median.items()
    )
    with finding(f"{network.name}: starts answer as the network") as found_:
        found_(worst <= TOLERANCE, f"relative error {worst:.1e} in {rounds + 1} starts a way")
    with finding(f"{network.name}: starts; host access over PipeSwitch") as found_:
        fast = target is None or gain >= target or DEVICE == "cpu"
        left = sum(network.layers[i].weights_bytes for i in starts["exact"].host) / 1e6
        aim = f" (target {target})" if target else ""
        exact = median["PipeSwitch"] / median["exact"]
        found_(
            fast,
            f"{gain:.2f}{aim}, exact {exact:.2f}; {figures}; exact leaves {left:.1f} MB there in"
            f" {len(starts['exact'].transfers)} transfers",
        )
    return starts


def _error(found: Any, wanted: Any) -> float:
    """Infinite where it is no number, which is never larger than another."""
    error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
    return inf if isnan(error) else error


def serve_many(
    networks: Sequence[Network],
    starts: Sequence[StageStart],
    *,
    requests: int = REQUESTS,
) -> tuple[list[int], int, int]:
    """Latencies of Poisson arrivals for instances that share a device's memory, microseconds; how
    many found their model absent; the most bytes held.

    Instances of one network have one copy in host memory, as a worker keeps it.
    """
    import torch

    from headrace.executors.torch_layers import ResidentModel

    size = [ResidentModel(n.host, s) for n, s in zip(networks, starts, strict=True)]
    sizes = [each.size_bytes for each in size]
    for each in size:
        each.leave()
    budget = IN_MEMORY * max(sizes)
    rng = random.Random(0)
    held: OrderedDict[int, Any] = OrderedDict()
    bytes_held = most = cold = 0
    latencies: list[int] = []
    gc.collect()
    gc.freeze()  # as a worker does that has read its models
    began, at = time.perf_counter(), 0.0
    for _ in range(requests):
        at += rng.expovariate(RATE_RPS)
        instance = rng.randrange(INSTANCES)
        kind = instance % len(networks)
        while (left := at - (time.perf_counter() - began)) > 0:
            time.sleep(left)
        if instance not in held:
            cold += 1
            while bytes_held + sizes[kind] > budget:
                _, gone = held.popitem(last=False)
                bytes_held -= gone.size_bytes
                gone.leave()
            held[instance] = ResidentModel(networks[kind].host, starts[kind])
            bytes_held += sizes[kind]
            most = max(most, bytes_held)
        held.move_to_end(instance)
        device = networks[kind].host.device
        with torch.inference_mode(), device.execution.current():
            given = networks[kind].given.to(device.name, non_blocking=True)
            found = [tensor.cpu() for tensor in held[instance].run([given])]
        if max(map(_error, found, networks[kind].answer)) > TOLERANCE:
            raise RuntimeError(f"instance {instance} answers something else")
        latencies.append(_us(time.perf_counter() - began - at))
    for each in held.values():
        each.leave()
    return latencies, cold, most


def provision(folder: Path) -> None:
    """All of it, finding by finding."""
    device = _device()
    networks, planned = [], []
    made = small_networks() if DEVICE == "cpu" else paper_networks()
    rounds = 2 if DEVICE == "cpu" else ROUNDS
    for name, (make, inputs) in made.items():
        with finding(f"{name}: into host memory, layer by layer") as found:
            network = opened(name, make, inputs, folder, device)
            size = sum(layer.weights_bytes for layer in network.layers) / 1e6
            found(True, f"{size:.1f} MB in {len(network.layers)} layers")
            planned.append(check_starts(network, rounds))
            networks.append(network)
    for way in WAYS:
        with finding(f"{INSTANCES} instances, memory for {IN_MEMORY}: {way}") as found:
            chosen = [starts[way] for starts in planned]
            requests = 40 if DEVICE == "cpu" else REQUESTS
            took, cold, most = serve_many(networks, chosen, requests=requests)
            late = sum(us > SLO_MS * 1000 for us in took) / len(took)
            p50_us, p99_us = (percentile(sorted(took), of) for of in (500, 990))
            found(
                len(took) == requests,
                f"p50 {p50_us / 1e3:.1f} ms, p99 {p99_us / 1e3:.1f}"
                f" ms, {late:.1%} above {SLO_MS} ms, {cold / len(took):.0%} absent,"
                f" {most / 1e9:.2f} GB held at most, {RATE_RPS:g}/s",
            )

    served(folder)


def _device() -> LayerDevice:
    if DEVICE == "cpu":
        from helpers.late_device import LateDevice

        return LateDevice()
    from headrace.executors.cuda_streams import cuda_device
    from headrace.executors.torch_model import prepare

    prepare("cuda:0")
    return cuda_device(0)


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="for what it makes")
    provision(parser.parse_args().folder)
