"""The demo's whole story, on the machine that runs the tests."""

import msgspec
import pytest

from headrace.metrics import Report
from helpers.demo import Demo

# Beside the tests of the OCR app, which serve the plan that the demo has made.
pytestmark = [pytest.mark.e2e, pytest.mark.lengthy, pytest.mark.xdist_group("ocr")]


def test_the_demo_reads_its_lines_and_pictures_right_and_leaves_all_its_files(demo: Demo) -> None:
    assert demo.exit_code == 0, demo.said
    for said in ("predicted", "the server ended with exit code 0", "ocr.recognise"):
        assert said in demo.said
    for name in ("measured-0.7.report.json", "ocr/measured.report.json"):
        report = msgspec.json.decode((demo.folder / name).read_bytes(), type=Report)
        assert report.total.arrived == report.total.answered + report.total.dropped_total
    assert (demo.folder / "run.trace.json").stat().st_size > 0
