"""The parser of a benchmark's command: `--help` prints what its module says of itself."""

import argparse


def new_parser(about: str | None) -> argparse.ArgumentParser:
    """
    Args:
        about: the module's docstring.
    """
    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
