"""Which clients' requests run in batches of their own."""

from headrace.serving.engine.offenders import Offenders


def test_three_bad_inputs_in_a_row_put_a_client_apart_and_good_ones_bring_it_back() -> None:
    offenders = Offenders()
    for _ in range(2):
        offenders.note(5, bad=True)
        assert 5 not in offenders
    offenders.note(5, bad=True)
    assert 5 in offenders
    for _ in range(32):
        offenders.note(5, bad=False)
    assert 5 not in offenders


def test_a_client_whose_inputs_are_bad_now_and_then_stays_with_the_others() -> None:
    offenders = Offenders()
    for number in range(240):
        offenders.note(5, bad=number % 12 == 0)
        assert 5 not in offenders


def test_nobody_pays_for_another_and_clients_that_are_not_known_are_never_apart() -> None:
    offenders = Offenders()
    for _ in range(20):
        offenders.note(5, bad=True)
        offenders.note(0, bad=True)
    assert 5 in offenders
    assert 6 not in offenders
    assert 0 not in offenders


def test_no_more_clients_are_remembered_than_there_is_room_for() -> None:
    offenders = Offenders()
    for client in range(1, 10_000):
        offenders.note(client, bad=True)
        offenders.note(client, bad=True)
        offenders.note(client, bad=True)
    assert 1 not in offenders
    assert 9_999 in offenders
