"""How cost grows: with the length of the input, the batch, the number of layers and the number of targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import whence
from tools.benchmarks.kept import Kept
from tools.benchmarks.measure import peak_memory, ratio
from tools.benchmarks.models import build, plain

METHODS = ("conservative-lrp", "attn-lrp", "generic-attention", "transformer-attribution")
SMALL = {"width": 384, "layers": 6}

#: what grows -> its values, and the sizes of the model and the batch at each
GROWING: dict[str, tuple[tuple[int, ...], Callable[[int], dict[str, int]]]] = {
    "tokens": ((128, 256, 512, 1024, 2048), lambda n: {"batch": 1, "tokens": n, **SMALL}),
    "batch": ((1, 2, 4, 8, 16, 32), lambda n: {"batch": n, **SMALL}),
    "layers": ((2, 4, 8, 12, 24), lambda n: {"batch": 1, "width": 384, "layers": n}),
}
TARGETS = (1, 2, 5, 10)
#: the models of which several targets are explained
MANY: dict[str, dict[str, int]] = {"small": SMALL, "short": {"tokens": 32}, "base": {}}


def measure(kept: Kept, repeats: int) -> None:
    """Measure what is not there yet."""
    for what, (values, sizes) in GROWING.items():
        for n in values:
            missing = [m for m in METHODS if f"{what}/{n}/{m}" not in kept]
            if not missing:
                continue
            model, inputs = build("bert", **sizes(n))
            base = plain(model, inputs)
            base()
            for method in missing:
                run = functools.partial(whence.explain, model, inputs, method)
                run()
                _keep(kept, f"{what}/{n}/{method}", run, base, repeats)
    _targets(kept, repeats)


def _targets(kept: Kept, repeats: int) -> None:
    """Several classes of one sample, against one class."""
    for name, sizes in MANY.items():
        missing = [(m, n) for m in METHODS for n in TARGETS if f"targets-{name}/{n}/{m}" not in kept]
        model, inputs = build("bert", 1, **sizes)
        for method, n in missing:
            one = functools.partial(whence.explain, model, inputs, method, target=0)
            several = functools.partial(whence.explain, model, inputs, method, target=whence.every(list(range(n))))
            several()
            _keep(kept, f"targets-{name}/{n}/{method}", several, one, repeats)


def _keep(kept: Kept, name: str, run: Callable[[], Any], base: Callable[[], Any], repeats: int) -> None:
    found = ratio(run, base, repeats)
    kept.add(name, found._asdict() | {"memory": peak_memory(run), "base": peak_memory(base)})
    print(f"{name:<44}{found.value:>7.2f}{found.seconds:>9.3f} s", flush=True)
