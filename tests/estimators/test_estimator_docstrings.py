import re

import pytest

from anode import ANODEClassifier, ANODEDensity, ANODERegressor
from anode.estimators.base import NeuralODEEstimator
from anode.estimators.parameters import documented

KINDS = [ANODEClassifier, ANODERegressor, ANODEDensity]


def described(section: str, kind: type) -> list[str]:
    """The names that a section of a docstring describes, each with a text."""
    text = re.search(rf"^{section}:\n(.*?)(?:\n\n|\Z)", kind.__doc__, re.MULTILINE | re.DOTALL)[1]
    found = re.findall(r"^    (\w[\w, ]*): \S", text, re.MULTILINE)
    return [name for names in found for name in names.split(", ")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_describes_every_parameter_once(kind):
    assert sorted(described("Args", kind)) == sorted(kind().get_params())


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_describes_what_is_learned(kind):
    model = kind(epochs=0).fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
    learned = {name for name in vars(model) if name.endswith("_")} | {"loss_curve_"}
    assert learned - {"n_features_in_"} == set(described("Attributes", kind))


def test_the_help_keeps_what_is_said_of_both():
    for kind in KINDS:
        assert "its prediction does not depend on other rows" in kind.__doc__
        assert NeuralODEEstimator.__doc__.splitlines()[0] not in kind.__doc__


def test_a_class_without_docstrings_is_left_without_names():
    class Bare:
        pass

    @documented(Bare)
    class Barer(Bare):
        pass

    assert described("Args", Barer) == []
