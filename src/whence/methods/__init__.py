"""The methods, by name. Each is a file: a rulebook and a read-out, opened by its paper and its equations."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from .._utils.type_checks import made
from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.axes import Dim


@dataclass
class Reading:
    """What a method reads from a run.

    Attributes:
        scores: ``[batch, tokens]``.
        layers: ``[batch, blocks, tokens]``, relevance entering each block.
        heads: ``[batch, blocks, heads]``.
        grid: height and width, where the scores are of pixels.
        others: further token streams: their axis and ``[batch, tokens]`` scores.
        tokens: the axis of the scores, if it is not that of what the first attention reads.
        branches: ``[batch, blocks, 2, tokens]``, what each block's attention and the rest of it wrote.
        pairs: ``[batch, blocks, tokens, tokens]``, from each token to those that it drew on.
    """

    scores: Tensor
    layers: Tensor | None = None
    heads: Tensor | None = None
    grid: tuple[int, int] | None = None
    others: list[tuple[Dim, Tensor]] = field(default_factory=list)
    tokens: Dim | None = None
    branches: Tensor | None = None
    pairs: Tensor | None = None


class Method:
    """A method: a dataclass of its options, with a rulebook and a read-out.

    Class attributes describe it for :func:`whence.methods`: ``paper``; what it ``shows``, and when to ``beware`` of it,
    each a sentence for people who do not know methods; whether it is ``class_specific`` and ``conservative``; whether
    it is a form of ``lrp``, or has the backward of one, which its inventors call patented (``docs/legal.md``); its cost
    in ``forwards`` and ``backwards``, in words where it depends on the input; what it ``needs`` of a model; the options
    that make it ``quick``, if all that is asked is whether it applies.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    shows: ClassVar[str] = ""
    beware: ClassVar[str] = ""
    class_specific: ClassVar[bool] = True
    conservative: ClassVar[bool] = False
    lrp: ClassVar[bool] = False
    forwards: ClassVar[int | str] = 1
    backwards: ClassVar[int] = 1
    needs: ClassVar[str] = "any differentiable model"
    quick: ClassVar[Mapping[str, Any]] = {}

    inside = False  # whether what each block did is asked for, too

    def rulebook(self) -> Rulebook:
        """Which rule each kind of operation follows."""
        raise NotImplementedError(f"Method '{self.name}' has no rulebook.")

    def read(self, run: Run) -> Reading:
        """Turn a traced forward into scores."""
        raise NotImplementedError(f"Method '{self.name}' has no read-out.")


REGISTRY: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def method(name: str) -> Callable[[M], M]:
    """Register a method under a name; a class that is no dataclass becomes one.

    Example:
        >>> @whence.method("mine")
        ... @dataclass
        ... class Mine(whence.Method):
        ...     def rulebook(self): ...
        ...     def read(self, run): ...
    """

    def register(cls: M) -> M:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(cls)
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return register


class Methods(dict[str, type[Method]]):
    """Methods by name; printed, a table of what they are."""

    def rows(self) -> list[dict[str, Any]]:
        """What there is to say of each: its class attributes, and its options with their defaults."""
        return [
            {
                "name": name, "class_specific": cls.class_specific, "conservative": cls.conservative, "lrp": cls.lrp,
                "forwards": cls.forwards, "backwards": cls.backwards, "needs": cls.needs, "paper": cls.paper,
                "shows": cls.shows, "beware": cls.beware,
                "options": {f.name: f.default for f in fields(cls)},  # type: ignore[arg-type]  # a dataclass
            }
            for name, cls in self.items()
        ]  # fmt: skip

    def table(self, width: int | None = None) -> str:
        """A line for each method; where ``width`` columns are too few, what it needs and its paper stand below."""
        cells = [["method", "per-class", "conserves", "LRP", "forwards", "backwards", "needs", "paper"]]
        cells += [[_word(value) for value in row.values()][:8] for row in self.rows()]
        widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
        lines = ["  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip() for row in cells]
        if width is None or max(map(len, lines)) <= width:
            return "\n".join(lines)
        lines = [line[: sum(widths[:6]) + 10].rstrip() for line in lines]
        below = textwrap.TextWrapper(width, initial_indent="    ", subsequent_indent="    ")
        notes = [below.fill(f"needs {needs}" + (f"; {paper}" if paper else "")) for *_, needs, paper in cells[1:]]
        return "\n".join([lines[0], *(part for pair in zip(lines[1:], notes, strict=True) for part in pair)])

    def __repr__(self) -> str:
        return self.table(shutil.get_terminal_size().columns)


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def methods() -> Methods:
    """Every method, by name.

    Example:
        >>> print(whence.methods())
        >>> whence.methods()["conservative-lrp"].paper
        'Ali et al., ICML 2022'
    """
    return Methods(sorted(REGISTRY.items()))


def create(name: str, options: dict[str, Any]) -> Method:
    """A method with its options, or an error that names the nearest."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(str(name), REGISTRY, n=1, cutoff=0.3)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise MethodError(f"There is no method '{name}'.{hint} Methods: {', '.join(sorted(REGISTRY))}.")
    return made(REGISTRY[name], f"method '{name}'", options)


from . import (  # noqa: E402  # below what they need; importing a method registers it
    attention,  # noqa: F401
    attention_flow,  # noqa: F401
    attn_lrp,  # noqa: F401
    bi_attention,  # noqa: F401
    conservative_lrp,  # noqa: F401
    dave,  # noqa: F401
    flash_trace,  # noqa: F401
    generic_attention,  # noqa: F401
    grad_cam,  # noqa: F401
    gradient_x_input,  # noqa: F401
    integrated_gradients,  # noqa: F401
    kernel_shap,  # noqa: F401
    legrad,  # noqa: F401
    libragrad,  # noqa: F401
    lime,  # noqa: F401
    lrp,  # noqa: F401
    occlusion,  # noqa: F401
    pa_lrp,  # noqa: F401
    random,  # noqa: F401
    res_lrp,  # noqa: F401
    rollout,  # noqa: F401
    saliency,  # noqa: F401
    smooth_grad,  # noqa: F401
    token_tm,  # noqa: F401
    transformer_attribution,  # noqa: F401
)
