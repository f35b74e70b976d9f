"""The OCR app as a server: the library's own answers, and nothing lost when a worker dies."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the extra `ocr` is not installed")
pytest.importorskip("rapidocr_onnxruntime", reason="`make test` installs it")

from examples.ocr.app import HEIGHT, WIDTH, prepare
from examples.ocr.client import APP, Client
from examples.ocr.pages import PAGES, draw
from examples.ocr.run import FUNCTION, POLICY, UNENFORCED
from examples.patience import UNHURRIED_US, InferenceError, Patience
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.ch_ppocr_det.utils import DetPreProcess

from headrace.catalog.documents import read_plan
from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, Arrived, SlotGained
from helpers.demo import Demo
from helpers.live_server import PATIENCE_S, LiveServer, serving

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy, pytest.mark.xdist_group("ocr")]

EVENTS = "of-tests.events"
"""The demo's own server has left another log."""


@pytest.fixture(scope="module")
def folder(demo: Demo) -> Path:
    """With the app's verified plan; roughly profiled, since nothing is timed here."""
    assert demo.exit_code == 0, demo.said
    return demo.folder / "ocr"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    arguments = ("--app", str(FUNCTION), "--events", str(folder / EVENTS))
    environment = {"XDG_CONFIG_HOME": str(folder)}
    options = (*arguments, "--policy", POLICY, UNENFORCED)
    with serving(folder / "plan.json", *options, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def library() -> RapidOCR:
    """At the app's detection size, which is a setting of the library."""
    return RapidOCR(
        det_limit_side_len=480,
        det_limit_type="max",
        intra_op_num_threads=1,
        inter_op_num_threads=1,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.lines[0])
def test_the_app_reads_what_was_drawn_and_what_the_library_reads(
    server: LiveServer, library: RapidOCR, page: object
) -> None:
    picture = draw(page)  # type: ignore[arg-type]
    client = Client(server.url)
    lines = client.read(picture, UNHURRIED_US)
    client.close()

    found, _ = library(np.ascontiguousarray(picture[:, :, ::-1]))
    assert [line.text for line in lines] == [text for _, text, _ in found]
    assert tuple(line.text for line in lines) == page.lines  # type: ignore[attr-defined]
    for line, (box, _, _) in zip(lines, found, strict=True):
        np.testing.assert_allclose(line.box, box, atol=2)


def test_pixels_are_looked_up_as_the_library_computes_them() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    step = DetPreProcess(WIDTH, "max", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    expected = step.permute(step.normalize(picture[:, :, ::-1])).astype(np.float32)
    np.testing.assert_array_equal(prepare(picture), expected)


def test_pictures_of_other_sizes_and_without_text_are_read_too(server: LiveServer) -> None:
    client = Client(server.url)
    large = np.kron(draw(PAGES[1]), np.ones((2, 2, 1), np.uint8))
    small = np.full((40, 60, 3), 255, np.uint8)

    assert tuple(line.text for line in client.read(large, UNHURRIED_US)) == PAGES[1].lines
    assert client.read(small, UNHURRIED_US) == []
    client.close()


def test_a_client_in_a_hurry_is_told_what_the_app_needs(server: LiveServer) -> None:
    client = Client(server.url, Patience(attempts=1))
    with pytest.raises(InferenceError, match=r"429.*app 'ocr' needs at least"):
        client.read(draw(PAGES[0]), timeout_us=1_000)
    client.close()


def test_after_a_worker_was_killed_the_app_answers_again(server: LiveServer, folder: Path) -> None:
    plan = read_plan(folder / "plan.json")
    orient = next(d for d in plan.deployments if d.module == "orient")
    [[only]] = [pipeline.stages[0].pool for pipeline in orient.pipelines]
    # The apps' process starts first, then the workers in the order of the slots.
    _, *workers = sorted(server.processes() - {server.process.pid})
    os.kill(workers[[slot.name for slot in plan.slots].index(only)], signal.SIGKILL)
    client = Client(server.url, Patience(attempts=1))
    texts: list[tuple[str, ...]] = []
    refusals: list[str] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(texts) < 2:
        assert time.monotonic() < until_s, refusals
        try:
            texts.append(tuple(line.text for line in client.read(draw(PAGES[0]), UNHURRIED_US)))
        except InferenceError as error:
            refusals.append(str(error))
    client.close()
    assert texts == [PAGES[0].lines] * 2
    assert all("no-slot" in told or "deadline" in told for told in refusals)


def test_the_servers_log_has_the_app_beside_its_modules(server: LiveServer, folder: Path) -> None:
    server.signal(signal.SIGTERM)
    code, _ = server.wait()
    header, events = read_event_log(folder / EVENTS)
    app = header.models.index(APP)
    requests = {e.request for e in events if isinstance(e, Arrived) and e.model == app}
    answered = {e.request for e in events if isinstance(e, Answered)}

    assert code == 0
    assert header.models == ("ocr.detect", "ocr.orient", "ocr.recognise", "ocr")
    assert len(requests & answered) >= len(PAGES) + 2
    assert any(isinstance(event, SlotGained) for event in events)
