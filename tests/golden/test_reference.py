"""The generated reference is what the code says now."""

import pytest
from docs.generate import REFERENCE, generate

FILES = generate()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REFERENCE)))
def test_the_reference_is_up_to_date(path: object) -> None:
    [(file, text)] = [item for item in FILES.items() if item[0] == path]

    assert file.exists(), f"{file.name} is missing: run `make docs`"
    assert file.read_text() == text, f"{file.name} is out of date: run `make docs`"


def test_nothing_else_lies_among_the_generated_schemas() -> None:
    generated = {path for path in FILES if path.parent.name == "schemas"}

    assert set((REFERENCE / "schemas").iterdir()) == generated
