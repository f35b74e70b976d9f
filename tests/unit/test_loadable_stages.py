"""Files of models that are loaded while a server runs: checked before first use, known again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import loadable_stages
from headrace.catalog.loadable_stages import LoadableModel, LoadableStage
from headrace.catalog.shared_stages import (
    forget_stages,
    require_as_made,
)
from headrace.catalog.shared_weights import WEIGHTS, SharedWeightsMaker
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


@pytest.mark.parametrize("maker", [MAKER, None], ids=["prepared", "as it is"])
def test_a_model_whose_file_is_another_one_now_or_gone_is_refused_although_its_stage_is_kept(
    tmp_path: Path, network: Profile, maker: SharedWeightsMaker | None
) -> None:
    model = LoadableModel(network, tmp_path, WHOLE, maker)
    stage = model.stage()
    path = tmp_path / "net.onnx"
    content = path.read_bytes()

    path.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    with pytest.raises(ModelError, match=r"net\.onnx"):
        model.stage()
    path.unlink()
    with pytest.raises(ModelError, match=r"net\.onnx"):
        model.stage()
    path.write_bytes(content)
    assert model.stage() == stage


class SlowToRemove:
    """Who finds an entry damaged second removes it when the first has made it anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._both_found = threading.Barrier(2)
        self._found: set[int] = set()
        self._removed = 0
        self.first_is_done = threading.Event()
        monkeypatch.setattr(loadable_stages, "require_as_made", self.require_as_made)
        monkeypatch.setattr(loadable_stages, "forget_stages", self.forget_stages)

    def require_as_made(self, *given: Any) -> Any:
        try:
            return require_as_made(*given)
        finally:
            if threading.get_ident() not in self._found:
                self._found.add(threading.get_ident())
                self._both_found.wait()

    def forget_stages(self, *given: Any) -> None:
        self._removed += 1
        if self._removed > 1:
            self.first_is_done.wait()
        forget_stages(*given)


def test_models_of_one_file_that_is_damaged_make_it_anew_once_and_both_know_it(
    tmp_path: Path, network: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_byte(Path(LoadableModel(network, tmp_path, WHOLE, MAKER).stage().path))
    slow = SlowToRemove(monkeypatch)

    def found(model: LoadableModel) -> LoadableStage:
        stage = model.stage()
        slow.first_is_done.set()
        return stage

    models = [LoadableModel(network, tmp_path, WHOLE, MAKER) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        stages = list(pool.map(found, models))
    for stage in stages:
        stage.require_unchanged()


def test_a_worker_is_told_a_file_by_its_name_while_it_is_read_again(
    tmp_path: Path, network: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LoadableModel(network, tmp_path, WHOLE, MAKER)
    known = model.stage()
    flip_a_byte(Path(known.path))
    meanwhile: list[LoadableStage | None] = []

    def note(*given: Any) -> None:
        meanwhile.append(model.checked)
        forget_stages(*given)

    monkeypatch.setattr(loadable_stages, "forget_stages", note)
    assert model.stage() != known
    assert meanwhile == [known]


def test_a_model_that_is_not_the_one_that_was_profiled_is_refused(
    tmp_path: Path, network: Profile
) -> None:
    flip_a_byte(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="is not the model that was profiled"):
        LoadableModel(network, tmp_path, WHOLE, MAKER).stage()
