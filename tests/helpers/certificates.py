"""Certificates for tests, made by the program `openssl`."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str = "authority") -> Pair:
    """One that signs itself."""
    pair = _pair(folder, name)
    _openssl(
        folder,
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", str(pair.key), "-out", str(pair.certificate)),
        *("-subj", f"/CN={name}", "-days", "2"),
    )
    return pair


def signed(folder: Path, name: str, by: Pair) -> Pair:
    """For localhost and 127.0.0.1."""
    pair, request = _pair(folder, name), folder / f"{name}.csr"
    _openssl(
        folder,
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", str(pair.key), "-out", str(request), "-subj", f"/CN={name}"),
    )
    names = folder / "names.cnf"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        folder,
        *("x509", "-req", "-in", str(request), "-out", str(pair.certificate), "-days", "2"),
        *("-CA", str(by.certificate), "-CAkey", str(by.key), "-CAcreateserial"),
        *("-extfile", str(names)),
    )
    return pair


def _pair(folder: Path, name: str) -> Pair:
    return Pair(folder / f"{name}.pem", folder / f"{name}.key")


def _openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs the program openssl, to make certificates")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)
