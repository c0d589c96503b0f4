"""What the tests share."""

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from anode.bench import turns
from anode.bench.turns import Worker

settings.register_profile(
    "anode",
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same file is written again and again
)
settings.load_profile("anode")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs begin so
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def default_handler() -> Iterator[None]:
    """Ctrl-C as Python handles it by itself, whatever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.fixture(scope="module")
def started() -> Iterator[dict[tuple[str, int], Worker]]:
    """Processes that several tests ask, by side and number: to import a library takes longer than most tasks here."""
    workers: dict[tuple[str, int], Worker] = {}
    yield workers
    for worker in workers.values():
        worker.__exit__()


@pytest.fixture
def shared(monkeypatch, started):
    """Lets ``measure`` ask the processes of other tests, but for those that have ended; not for memory."""

    def worker(entry, number):
        key = (entry.side, number)
        if key in started and started[key]._process.poll() is not None:
            started.pop(key).__exit__()
        if key not in started:
            started[key] = Worker(entry, number)
        started[key].entry = entry
        return nullcontext(started[key])

    monkeypatch.setattr(turns, "Worker", worker)
