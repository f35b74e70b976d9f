"""Until when a server's certificate is valid, as its log says it."""

import logging
import time
from pathlib import Path

import pytest

from headrace.serving.certificates import SOON_S, Validity, reminder, validity
from helpers.certificates import authority, signed

DAY_S = 86_400.0


def test_a_certificate_is_read_whatever_the_time_is_and_with_its_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = authority(tmp_path)
    server, chain = signed(tmp_path, "server", ours), tmp_path / "chain.pem"
    chain.write_text(server.certificate.read_text() + ours.certificate.read_text())

    found = validity(chain, server.key)

    assert found is not None
    assert found == validity(server.certificate, server.key)
    assert found.until_s - found.since_s == 2 * DAY_S
    monkeypatch.setattr(time, "time", lambda: found.until_s + DAY_S)
    with caplog.at_level(logging.WARNING):
        reminder(logging.getLogger("headrace.serve"), chain, server.key)()
    [record] = caplog.records
    assert record.getMessage().startswith(f"--tls-cert {chain} has expired on 20")


def test_what_cannot_be_served_is_not_judged(tmp_path: Path) -> None:
    ours, other = authority(tmp_path), authority(tmp_path, "other")

    assert validity(ours.certificate, other.key) is None
    assert validity(tmp_path / "none.pem", ours.key) is None


@pytest.mark.parametrize(
    ("now_s", "said"),
    [
        (-1.0, "is valid from 1970-01-01 00:00 UTC on: clients refuse it before"),
        (0.0, None),
        (90 * DAY_S - SOON_S, None),
        (90 * DAY_S - SOON_S + 1, "expires on 1970-04-01 00:00 UTC: clients refuse it then; renew"),
        (90 * DAY_S + 1, "has expired on 1970-04-01 00:00 UTC: clients refuse it; renew it"),
    ],
)
def test_a_certificate_that_clients_refuse_or_soon_will_is_complained_of(
    now_s: float, said: str | None
) -> None:
    complaint = Validity(0.0, 90 * DAY_S).complaint(now_s)

    assert complaint is None if said is None else said in str(complaint)
