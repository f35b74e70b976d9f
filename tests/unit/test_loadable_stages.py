"""Files of models that are loaded while a server runs: checked before first use, known again."""

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


def flip_a_byte(path: Path) -> None:
    """Damage a file where it is."""
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 255]) + content[1:])


@pytest.mark.parametrize("maker", [MAKER, None], ids=["prepared", "as it is"])
def test_files_are_known_again_and_made_anew_when_they_are_damaged_or_gone(
    tmp_path: Path, network: Profile, maker: SharedWeightsMaker | None
) -> None:
    model = LoadableModel(network, tmp_path, WHOLE, maker)
    assert model.checked is None
    stage = model.stage()
    assert model.checked == stage == model.stage()
    own = Path(stage.path)
    whole = own.read_bytes()
    # The same content is the same file, whenever it was written.
    flip_a_byte(own)
    own.write_bytes(whole)
    assert model.stage().weights == stage.weights
    used = own if stage.weights is None else own.parent / WEIGHTS
    flip_a_byte(used)
    with pytest.raises(ModelError):
        stage.require_unchanged()
    assert model.stage().size_bytes == stage.size_bytes
    model.stage().require_unchanged()
    # A server that starts finds the same.
    own.unlink()
    LoadableModel(network, tmp_path, WHOLE, maker).stage().require_unchanged()
    with pytest.raises(ModelError):
        stage.require_unchanged()


def test_a_model_that_is_not_the_one_that_was_profiled_is_refused(
    tmp_path: Path, network: Profile
) -> None:
    flip_a_byte(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="is not the model that was profiled"):
        LoadableModel(network, tmp_path, WHOLE, MAKER).stage()
