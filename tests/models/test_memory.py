import pytest
import torch

from anode.models import memory
from anode.models.memory import FALLBACK, SHARE, available_bytes, bytes_to_keep

STATE = torch.zeros(1)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 8 processors and files that say what memory it has: available, and a container's limit and use."""
    monkeypatch.delenv("ANODE_KEEP_BYTES", raising=False)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory.os, "cpu_count", lambda: 8)

    def has(available: int | None, limit: str | None = None, used: int = 0) -> None:
        said = "" if available is None else f"MemAvailable:   {available} kB\n"
        (tmp_path / "meminfo").write_text(f"MemTotal:  99999999 kB\nMemFree: 1 kB\n{said}Buffers: 1 kB\n")
        if limit is not None:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")

    return has


@pytest.mark.parametrize(("count", "share"), [(1, 1 / 8), (4, 1 / 2), (8, 1), (16, 1)])
def test_a_process_keeps_its_threads_share_of_half_the_available_memory(machine, threads, count, share):
    machine(8_000_000)
    threads(count)
    assert bytes_to_keep(STATE) == int(SHARE * 8_000_000 * 1024 * share)


def test_the_variable_sets_the_budget(machine, monkeypatch):
    machine(8_000_000)
    monkeypatch.setenv("ANODE_KEEP_BYTES", " 123456 ")
    assert bytes_to_keep(STATE) == 123456
    monkeypatch.setenv("ANODE_KEEP_BYTES", "0")
    assert bytes_to_keep(STATE) == 0


@pytest.mark.parametrize("value", ["1GB", "-1", "1.5", "1e9", "lots"])
def test_a_budget_that_is_no_number_of_bytes_is_refused(monkeypatch, value):
    monkeypatch.setenv("ANODE_KEEP_BYTES", value)
    with pytest.raises(ValueError) as error:
        bytes_to_keep(STATE)
    assert str(error.value) == f"ANODE_KEEP_BYTES: takes a whole number of bytes, got {value!r}"


def test_where_the_system_does_not_say_the_budget_is_a_gigabyte(machine, tmp_path):
    machine(None)
    assert (available_bytes(), bytes_to_keep(STATE)) == (None, FALLBACK)
    (tmp_path / "meminfo").unlink()
    assert (available_bytes(), bytes_to_keep(STATE)) == (None, FALLBACK)


def test_a_state_on_another_device_has_the_fallback(machine):
    machine(8_000_000)
    assert bytes_to_keep(torch.zeros(1, device="meta")) == FALLBACK


@pytest.mark.parametrize(
    ("limit", "used", "expected"), [("max", 5, 8192), ("3000", 1000, 2000), ("3000", 4000, 0), ("99999", 0, 8192)]
)
def test_the_limit_of_a_container_counts(machine, limit, used, expected):
    machine(8, limit, used)
    assert available_bytes() == expected
