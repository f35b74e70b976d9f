"""What YAML and JSON say alike is read alike."""

import json
from pathlib import Path

import pytest

from headrace.catalog.source import parse_json
from headrace.catalog.yaml_lines import parse_yaml
from headrace.domain.errors import DocumentError

PATH = Path("file.yaml")


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_json_read_as_yaml_has_the_same_characters(ensure_ascii: bool) -> None:
    value = {"\U0001f642": ["a\U0001f642b.json", "\ufeff\u00e9", "\U0010ffff\U00010000"]}
    text = json.dumps(value, ensure_ascii=ensure_ascii)

    assert parse_yaml(PATH, text).data == parse_json(PATH, text).data == value


@pytest.mark.parametrize(
    "line", [r'"\ud83d": 1', r'a: "\ude42"', r'a: ["\ude42\ud83d"]', r'? "x\udfff"']
)
def test_half_a_character_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(DocumentError, match=r"file\.yaml, line 2: holds a lone surrogate"):
        parse_yaml(PATH, f"# a comment\n{line}\n")


def test_a_field_is_given_twice_also_where_it_is_spelt_in_two_ways() -> None:
    with pytest.raises(DocumentError, match="is given twice"):
        parse_yaml(PATH, r'{"\ud83d\ude42": 1, "\U0001f642": 2}')
