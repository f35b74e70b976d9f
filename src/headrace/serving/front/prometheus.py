"""/metrics: the core's measures as Prometheus writes them."""

import re
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from headrace.serving.core.counters import Histogram, Measure, at_most, measures
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.http_messages import Response

_QUOTED = re.compile(r'="([!#$%&\'*+.^_`|~0-9A-Za-z-]*)"')
"""A parameter whose value needs no quotes and has them: `version="1.0.0"` (RFC 9110, 5.6.6)."""


class Exposition:
    """Answers a scrape."""

    def __init__(self, core: ProtocolCore) -> None:
        self._core = core
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def response(self, accept: bytes) -> Response:
        """In a format that the scraper accepts; in the plain one where it asks for none that is,
        since it has use for no other answer."""
        encode, content_type = _encoder(accept.decode("latin-1"))
        return Response(200, encode(self._registry), content_type=content_type.encode())

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        for measure in measures(self._core.counters, self._core.status()):
            yield _family(measure)


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(_QUOTED.sub(r"=\1", accept))
    except (TypeError, ValueError):  # It compares versions, and this one has no numbers.
        return choose_encoder("")


def _family(measure: Measure) -> Metric:
    name = f"headrace_{measure.name}"
    if measure.kind == "histogram":
        buckets = HistogramMetricFamily(name, measure.what, labels=measure.labels)
        for labels, value in measure.samples:
            assert isinstance(value, Histogram), "a histogram's samples are histograms"
            bounds = [f"{bound:g}" for bound in value.bounds] + ["+Inf"]
            counts = map(float, at_most(value))
            buckets.add_metric(labels, list(zip(bounds, counts, strict=True)), value.total)
        return buckets
    make = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = make(name, measure.what, labels=measure.labels)
    for labels, value in measure.samples:
        assert not isinstance(value, Histogram), "only a histogram has such samples"
        family.add_metric(labels, value)
    return family
