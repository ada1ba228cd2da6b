"""How much memory is free: what the machine has, or what the container leaves."""

from __future__ import annotations

import pytest
import torch

from whence._utils import free_memory as module
from whence._utils.free_memory import free_memory

CPU = torch.device("cpu")


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine with 8 GiB available and no container, as files."""
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    cgroup.mkdir()
    meminfo.write_text("MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(module, "MEMINFO", meminfo)
    monkeypatch.setattr(module, "CGROUP", cgroup)
    return meminfo, cgroup


def test_it_is_what_the_machine_has_available(system):
    assert free_memory(CPU) == 8 * 2**30


@pytest.mark.parametrize(("limit", "held", "free"), [
    ("max", 0, 8 * 2**30), (f"{2**30}\n", 2**28, 2**30 - 2**28), (f"{2**30}", 2**31, 0), (f"{2**40}", 0, 8 * 2**30),
])  # fmt: skip
def test_a_container_may_leave_less(system, limit, held, free):
    _, cgroup = system
    (cgroup / "memory.max").write_text(limit)
    (cgroup / "memory.stat").write_text(f"anon {held}\nfile {2**30}\n")
    assert free_memory(CPU) == free


def test_a_system_that_does_not_say_has_no_bound(system, monkeypatch):
    meminfo, _ = system
    meminfo.unlink()
    pages = {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(module.os, "sysconf", pages.__getitem__)
    assert free_memory(CPU) == 4096000
    monkeypatch.delattr(module.os, "sysconf")
    assert free_memory(CPU) is None


def test_of_other_devices_nothing_is_known():
    assert free_memory(torch.device("meta")) is None
