"""The documentation's pages, their fenced blocks, and the commands that they show."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])

FENCED = re.compile(
    r"^(?:<!-- test: (?P<test>[^>]*?) -->\n+)?```(?P<kind>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    kind: str
    test: str
    """What stands in the comment above it; empty: nothing."""
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """The lines that a reader would type."""
        if self.kind != "console":
            return []
        return [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("body")) + 1,
            kind=found["kind"],
            test=found["test"] or "",
            body=found["body"],
        )
        for found in FENCED.finditer(text)
    ]


def inline_code(page: Path) -> list[str]:
    """What stands between back-ticks outside fenced blocks, on one line each."""
    prose = FENCED.sub("", page.read_text())
    return [" ".join(code.split()) for code in INLINE.findall(prose)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
