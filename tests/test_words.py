import pytest

from anode.words import counted, duration


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, "0 s"),
        (0.001, "0.00 s"),
        (0.123, "0.12 s"),
        (1, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (400.1, "6 min 40 s"),
        (599.7, "10 min"),
        (3060, "51 min"),
        (3599.7, "1 h 0 min"),
        (7260, "2 h 1 min"),
        (68_400, "19 h 0 min"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, says):
    assert duration(seconds) == says


def test_one_is_not_a_plural():
    assert (counted(1, "row"), counted(2, "row"), counted(1234, "row")) == ("1 row", "2 rows", "1,234 rows")
