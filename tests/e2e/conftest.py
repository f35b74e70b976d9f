"""What several files of end-to-end tests share."""

import pytest

from helpers.demo import Demo, tell_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Tests that take it are of the group "ocr", so that one worker tells it, once."""
    return tell_demo(tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("profiles"))
