"""The generated reference is what the code says now."""

from docs.generate import REFERENCE, generate


def test_the_reference_is_up_to_date_and_nothing_else_lies_among_its_schemas() -> None:
    generated = generate()
    kept = {REFERENCE / "cli.md", *(REFERENCE / "schemas").iterdir()}

    assert kept == set(generated)
    old = [file.name for file, text in generated.items() if file.read_text() != text]
    assert not old, "out of date: run `make docs`"
