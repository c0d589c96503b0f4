"""What the tests share."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "anode",
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same file is written again and again
)
settings.load_profile("anode")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of torch's threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread of torch for a whole module, as in the processes that train, so that bits can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
