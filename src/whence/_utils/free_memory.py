"""How much memory is free: on a GPU, on the machine, or in the container that this process runs in."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes can still be allocated on a device; ``None`` if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    known = [free for free in (_of_machine(), _of_container()) if free is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    """Return what the kernel can hand out without swapping; where it does not say, the pages that nobody uses."""
    available = _entries(MEMINFO).get("MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows, macOS
        return None


def _of_container() -> int | None:
    """Return the limit of the control group (version 2) less what its processes hold."""
    try:
        limit = int((CGROUP / "memory.max").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    return max(0, limit - _entries(CGROUP / "memory.stat").get("anon", 0))


def _entries(path: Path) -> dict[str, int]:
    """Return the lines ``name number ...`` of a file; empty if it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(number) for name, number, *_ in map(str.split, lines)}
