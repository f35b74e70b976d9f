"""Files of models that are loaded while a server runs: checked before first use, and known again."""

from pathlib import Path

import pytest

from headrace.catalog.loadable_stages import LoadableModel
from headrace.catalog.shared_stages import WEIGHTS, SharedWeightsMaker
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.onnx_shared import MAKER
from helpers.onnx_models import saved
from helpers.served_items import convolutions, network_profile

WHOLE = (0, 4)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def network(tmp_path: Path) -> Profile:
    return network_profile(saved(convolutions(), tmp_path / "net.onnx"))


def flip_a_byte(path: Path) -> bytes:
    """Damage a file where it is; returns what it was."""
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 255]) + content[1:])
    return content


@pytest.mark.parametrize("maker", [MAKER, None], ids=["prepared", "as it is"])
def test_a_damaged_or_vanished_file_is_refused_and_one_that_is_whole_again_is_not(
    tmp_path: Path, network: Profile, maker: SharedWeightsMaker | None
) -> None:
    model = LoadableModel(network, tmp_path, WHOLE, maker)
    assert model.checked is None
    stage = model.stage()
    assert model.checked == stage
    assert model.stage() == stage
    own = Path(stage.path)
    used = own if stage.weights is None else own.parent / WEIGHTS
    for path in dict.fromkeys((own, used)):
        before = flip_a_byte(path)
        with pytest.raises(ModelError, match="damaged"):
            model.stage()
        path.unlink()
        if path is used and maker is not None:
            with pytest.raises(ModelError, match="cannot be read"):
                model.stage()
        path.write_bytes(before)
        assert model.stage().path == stage.path
    # A server that starts finds the same.
    flip_a_byte(used)
    with pytest.raises(ModelError, match="damaged"):
        LoadableModel(network, tmp_path, WHOLE, maker).stage()


def test_a_model_that_is_not_the_one_that_was_profiled_is_refused(
    tmp_path: Path, network: Profile
) -> None:
    flip_a_byte(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="is not the model that was profiled"):
        LoadableModel(network, tmp_path, WHOLE, MAKER).stage()
