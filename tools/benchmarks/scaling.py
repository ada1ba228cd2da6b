"""How cost grows: with the length of the input, the batch, the number of layers and the number of targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import whence
from tools.benchmarks.measure import peak_memory, ratio
from tools.benchmarks.measurements import Measurements
from tools.benchmarks.models import build, plain

METHODS = ("conservative-lrp", "attn-lrp", "generic-attention", "transformer-attribution")
SMALL = {"width": 384, "layers": 6}

#: what grows -> its values, and the sizes of the model and the batch at each
GROWING: dict[str, tuple[tuple[int, ...], Callable[[int], dict[str, int]]]] = {
    "tokens": ((128, 256, 512, 1024), lambda n: {"batch": 1, "tokens": n, **SMALL}),
    "batch": ((1, 2, 4, 8, 16), lambda n: {"batch": n, **SMALL}),
    "layers": ((2, 4, 8, 12), lambda n: {"batch": 1, "width": 384, "layers": n}),
}
TARGETS = (1, 2, 5, 10)
#: the models of which several targets are explained
MANY: dict[str, dict[str, int]] = {"small": SMALL, "base": {}}


def measure(made: Measurements, repeats: int) -> None:
    """Measure what is not there yet."""
    for what, (values, sizes) in GROWING.items():
        for n in values:
            missing = [m for m in METHODS if f"{what}/{n}/{m}" not in made]
            if not missing:
                continue
            model, inputs = build("bert", **sizes(n))
            base = plain(model, inputs)
            base()
            for method in missing:
                run = functools.partial(whence.explain, model, inputs, method)
                run()
                _add(made, f"{what}/{n}/{method}", run, base, repeats)
    _targets(made, repeats)


def _targets(made: Measurements, repeats: int) -> None:
    """Several classes of one sample against one class: by ``whence.explain``, and ten of them also replayed."""
    ways = [(m, n, "") for m in METHODS for n in TARGETS] + [(m, TARGETS[-1], "-warm") for m in METHODS]
    for name, sizes in MANY.items():
        missing = [way for way in ways if f"targets-{name}{way[2]}/{way[1]}/{way[0]}" not in made]
        if not missing:
            continue
        model, inputs = build("bert", 1, **sizes)
        for method, n, warm in missing:
            explain: Callable[..., Any] = functools.partial(whence.explain, model, inputs, method)
            if warm:
                explain = functools.partial(whence.compile(model, method), inputs)
                explain(target=0)
            targets = whence.every(list(range(n)))
            _add_targets(made, f"targets-{name}{warm}/{n}/{method}", explain, targets, repeats)


def _add_targets(
    made: Measurements, name: str, explain: Callable[..., Any], targets: whence.Every, repeats: int
) -> None:
    one = functools.partial(explain, target=0)
    several = functools.partial(explain, target=targets)
    several()
    found = ratio(several, one, repeats)
    made.add(name, found._asdict())
    print(f"{name:<44}{found.value:>7.2f}{found.seconds:>9.3f} s", flush=True)


def _add(made: Measurements, name: str, run: Callable[[], Any], base: Callable[[], Any], repeats: int) -> None:
    found = ratio(run, base, repeats)
    made.add(name, found._asdict() | {"memory": peak_memory(run), "base": peak_memory(base)})
    print(f"{name:<44}{found.value:>7.2f}{found.seconds:>9.3f} s", flush=True)
