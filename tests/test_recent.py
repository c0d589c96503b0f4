"""Values that were used lately."""

from anode.recent import Recent


def test_a_value_is_made_once_for_each_key():
    recent, made = Recent(3), []
    for key in (1, 2, 1, 2):
        recent.get(key, lambda key=key: made.append(key))
    assert made == [1, 2]


def test_what_was_not_used_for_longest_is_forgotten_first():
    recent, made = Recent(2), []
    for key in ("a", "b", "a", "c", "a", "b"):
        recent.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "b"]


def test_a_key_that_cannot_be_hashed_is_made_every_time():
    recent, made = Recent(2), []
    for _ in range(2):
        assert recent.get([1], lambda: made.append(1) or "value") == "value"
    assert made == [1, 1]
