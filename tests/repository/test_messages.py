"""The kit that tests read messages with."""

import pytest
from message_kit import lacking, refused


@pytest.mark.parametrize(
    ("piece", "lacks"),
    [("ppo.lr", False), ("ppo.l", True), ("10", False), ("1", True), ("--all", False), (("10", "20"), True)],
)
def test_a_piece_is_whole_words_of_the_message(piece: str | tuple[str, ...], lacks: bool):
    assert bool(lacking("ppo.lr=10: lower it, or give --all", piece)) is lacks


@pytest.mark.parametrize("message", ["lr is 2: lower lr_decay", "lr is 1: raise it", "lr is 1:\nlower it"])
def test_a_message_without_its_value_or_its_remedy_or_of_two_lines_fails(message: str):
    with pytest.raises(AssertionError), refused(ValueError, "lr", 1, "lower it"):
        raise ValueError(message)


def test_several_lines_are_allowed_where_they_are_meant():
    with refused(ValueError, "lower it", lines=None) as caught:
        raise ValueError("lr is 1:\nlower it")
    assert caught.type is ValueError
