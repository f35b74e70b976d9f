"""Starts of models that are not in a GPU's memory: `make gpu-check PART=provision`.

    python -m benchmarks.gpu.provision FOLDER      (DEVICE=cpu: over a device made of memory)

For networks of the sizes of BERT-Base, RoBERTa-Base, GPT-2 (without its head) and ResNet-50, with
random weights, at the sequence lengths of DeepPlan's measurements:

1. layers     each begins with a step that reads 64 KiB of weights; copied alone, run in memory, run
              from the host, in rounds, by the clock between synchronisations: p50 and p99
2. starts     on demand, PipeSwitch, direct host access (Algorithm 1), exact: in turn, median,
              beside what the timeline of the same figures predicts
3. answers    of every start against the network's own
4. many       100 instances with memory for 30 of them, Poisson arrivals, the one unused for longest
              leaves: in this process, one request at a time, by the same three ways

The GPU part has never been run: the figures of a CPU say nothing but that the code runs.
"""

import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from benchmarks.gpu.findings import DEVICE, finding

from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.domain.layers import Layer, LayerTimes
from headrace.executors.base import StageStart
from headrace.executors.streams import LayerDevice
from headrace.planning.provisioning.planners import plan_start
from headrace.planning.provisioning.residency import stated
from headrace.profiling.timing import percentile
from headrace.starts import chain_of

MANY_BYTES = 1 << 8 if DEVICE == "cpu" else 1 << 16
"""Of weights that a step reads which begins a layer."""
ROUNDS = 15
TOLERANCE = 1e-3
WAYS = {
    "on demand": "on-demand",
    "PipeSwitch": "pipeswitch-grouped",
    "direct host access": "deepplan",
    "exact": "exact",
}
TARGETS = {"bert-base": 1.28, "roberta-base": 1.45, "gpt2": 1.44}
"""Direct host access over PipeSwitch."""
INSTANCES, IN_MEMORY = 100, 30
REQUESTS, RATE_RPS, SLO_MS = 600, 40.0, 100


class Network(NamedTuple):
    """One, in host memory."""

    name: str
    inputs: Any
    answer: Any
    host: Any
    layers: tuple[Layer, ...]
    names: tuple[str, ...]


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

    from headrace.executors.torch_layers import HostModel
    from headrace.executors.torch_program import TorchProgram
    from helpers.torch_networks import export

    torch.manual_seed(0)
    module, given = make().eval(), inputs()
    with torch.inference_mode():
        answer = module(given)
    # One item is an example that exports fix the batch at.
    path = export(module, torch.cat([given, given]), folder / f"{name}.pt2")
    graph = load_graph(path)
    content = whole_model(graph)
    program = TorchProgram(onnx.load_model_from_string(content), graph.weights, device.name)
    weights = program.take_weights()
    names = []
    for number, step in enumerate(program.step_names):
        read = program.reads(number, number + 1) & weights.keys()
        if sum(weights[register].nbytes for register in read) >= MANY_BYTES:
            names.append(step[0] or step[1])
    del program, weights
    host = HostModel(content, graph.weights, names, device)
    layers = tuple(
        Layer(name=each, weights_bytes=host.layer_bytes(i)) for i, each in enumerate(names)
    )
    answers = answer if isinstance(answer, tuple) else (answer,)
    return Network(name, given, answers, host, layers, tuple(names))


def started(network: Network, planned: Any) -> StageStart:
    return StageStart(
        layers=network.names,
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
        given = network.inputs.to(device.name, non_blocking=True)
        here = [tensor.cpu() for tensor in resident.run([given])]
    return time.perf_counter() - began, here, resident


def measured(network: Network, rounds: int = ROUNDS) -> LayerTimes:
    """What each layer takes to copy, in memory, and from the host; a first visit is left out."""
    count = len(network.layers)
    everything = tuple((layer,) for layer in range(count))
    loads: list[list[int]] = [[] for _ in range(count)]
    inside: list[list[int]] = [[] for _ in range(count)]
    outside: list[list[int]] = [[] for _ in range(count)]
    for visit in range(rounds + 1):
        for rows, transfers in ((inside, everything), (outside, ())):
            host = () if transfers else tuple(range(count))
            start = StageStart(
                layers=network.names, host=host, transfers=transfers, waits_for_all=True
            )
            for layer, took_us in enumerate(_by_layer(network, start)):
                rows[layer].append(took_us)
        for layer, row in enumerate(loads):
            row.append(_copy_us(network, layer))
        if visit == 0:
            for row in (*loads, *inside, *outside):
                row.clear()
    saved = _call_us(loads)

    def stated_rows(rows: Sequence[Sequence[int]], q: float) -> tuple[int, ...]:
        return tuple(max(1, round(percentile(row, q))) for row in rows)

    return LayerTimes(
        device="cuda",
        share=Fraction(1),
        load_p50_us=stated_rows(loads, 0.5),
        load_p99_us=stated_rows(loads, 0.99),
        saved_us=tuple(min(saved, us - 1) for us in stated_rows(loads, 0.5)),
        inside_p50_us=stated_rows(inside, 0.5),
        inside_p99_us=stated_rows(inside, 0.99),
        host_p50_us=stated_rows(outside, 0.5),
        host_p99_us=stated_rows(outside, 0.99),
    )


def _by_layer(network: Network, start: StageStart) -> list[int]:
    """What each layer of a run takes whose copies are made, each waited for."""
    import torch

    from headrace.executors.torch_layers import ResidentModel

    device = network.host.device
    resident = ResidentModel(network.host, start)
    resident.wait_loaded()
    instants: list[float] = []

    def note(layer: int) -> None:
        device.execution.mark().wait()
        instants.append(time.perf_counter())

    with torch.inference_mode(), device.execution.current():
        given = network.inputs.to(device.name)
        note(-1)
        resident.run([given], note)
    resident.leave()
    return [_us(end - begin) for begin, end in pairwise(instants)]


def _us(seconds: float) -> int:
    return max(1, round(seconds * 1e6))


def _copy_us(network: Network, layer: int) -> int:
    """Of one layer's bytes, by itself."""
    device, size = network.host.device, network.host.layer_bytes(layer)
    memory = device.allocate(size)
    begin = time.perf_counter()
    device.loading.copy(memory, network.host.block.bytes[:size])
    device.loading.mark().wait()
    took = _us(time.perf_counter() - begin)
    device.give_back(memory)
    return took


def _call_us(loads: Sequence[Sequence[int]]) -> int:
    """Of each copy beside its bytes: what the smallest takes, about."""
    return max(0, round(min(percentile(row, 0.5) for row in loads)) - 1)


def check_starts(network: Network, rounds: int = ROUNDS) -> dict[str, StageStart]:
    """Measure its layers, plan, start in each way; the starts."""
    times = measured(network, rounds)
    planned = {
        way: stated(network.layers, times, plan_start(planner, chain_of(times)), planner)
        for way, planner in WAYS.items()
    }
    starts = {way: started(network, each) for way, each in planned.items()}
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    worst = 0.0
    for visit in range(rounds + 1):
        for way, start in starts.items():
            seconds, found, resident = once(network, start)
            resident.leave()
            worst = max(worst, *(_error(a, b) for a, b in zip(found, network.answer, strict=True)))
            if visit:
                took[way].append(seconds)
    median = {way: statistics.median(each) * 1e3 for way, each in took.items()}
    gain = median["PipeSwitch"] / median["direct host access"]
    target = TARGETS.get(network.name)
    figures = ", ".join(
        f"{way} {ms:.2f} ms ({planned[way].start_us / 1e3:.2f} predicted, p99)"
        for way, ms in median.items()
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
            f"{gain:.2f}{aim}, exact {exact:.2f}; {figures}; exact leaves {left:.1f} MB there",
        )
    return starts


def _error(found: Any, wanted: Any) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def serve_many(
    networks: Sequence[Network],
    starts: Sequence[StageStart],
    *,
    requests: int = REQUESTS,
    rate_rps: float = RATE_RPS,
    seed: int = 0,
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
    rng = random.Random(seed)
    held: OrderedDict[int, Any] = OrderedDict()
    bytes_held = most = cold = 0
    latencies: list[int] = []
    began, at = time.perf_counter(), 0.0
    for _ in range(requests):
        at += rng.expovariate(rate_rps)
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
            given = networks[kind].inputs.to(device.name, non_blocking=True)
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
            found(
                len(took) == requests,
                f"p50 {percentile(took, 0.5) / 1e3:.1f} ms, p99 {percentile(took, 0.99) / 1e3:.1f}"
                f" ms, {late:.1%} above {SLO_MS} ms, {cold / len(took):.0%} absent,"
                f" {most / 1e9:.2f} GB held at most, {RATE_RPS:g}/s",
            )


def _device() -> LayerDevice:
    if DEVICE == "cpu":
        from helpers.late_device import LateDevice

        return LateDevice()
    from headrace.executors.cuda_streams import cuda_device
    from headrace.executors.torch_model import prepare

    prepare("cuda:0")
    return cuda_device(0)


if __name__ == "__main__":
    provision(Path(sys.argv[1]))
