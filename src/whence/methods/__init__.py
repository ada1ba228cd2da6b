"""The methods, by name. Each is a file: a rulebook and a read-out, opened by its paper and its equations."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from ..axes import Dim
from ..errors import MethodError
from ..run import Rulebook, Run


@dataclass
class Reading:
    """What a method reads from a run.

    Attributes:
        scores: ``[batch, tokens]``.
        layers: ``[batch, blocks, tokens]``, relevance entering each block.
        heads: ``[batch, blocks, heads]``.
        grid: height and width, where the scores are of pixels.
        others: further token streams: their axis and ``[batch, tokens]`` scores.
    """

    scores: Tensor
    layers: Tensor | None = None
    heads: Tensor | None = None
    grid: tuple[int, int] | None = None
    others: list[tuple[Dim, Tensor]] = field(default_factory=list)


class Method:
    """A method: a dataclass of its options, with a rulebook and a read-out.

    Class attributes describe it for :func:`whence.methods`: ``paper``; whether it is ``class_specific`` and
    ``conservative``; its cost in ``forwards`` and ``backwards``; what it ``needs`` of a model.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    class_specific: ClassVar[bool] = True
    conservative: ClassVar[bool] = False
    forwards: ClassVar[int] = 1
    backwards: ClassVar[int] = 1
    needs: ClassVar[str] = "any differentiable model"

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


def methods() -> dict[str, type[Method]]:
    """Every method, by name."""
    return dict(sorted(REGISTRY.items()))


def create(name: str, options: dict[str, Any]) -> Method:
    """A method with its options, or an error that names the nearest."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(str(name), REGISTRY, n=1, cutoff=0.3)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise MethodError(f"There is no method '{name}'.{hint} Methods: {', '.join(sorted(REGISTRY))}.")
    cls = REGISTRY[name]
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]  # every method is a dataclass
    unknown = [option for option in options if option not in known]
    if unknown:
        raise MethodError(f"Method '{name}' has no option '{unknown[0]}'. Its options: {', '.join(known) or 'none'}.")
    return cls(**options)


from . import (  # noqa: E402  # below what they need; importing a method registers it
    attention,  # noqa: F401
    attention_flow,  # noqa: F401
    conservative_lrp,  # noqa: F401
    generic_attention,  # noqa: F401
    grad_cam,  # noqa: F401
    gradient_x_input,  # noqa: F401
    integrated_gradients,  # noqa: F401
    lrp,  # noqa: F401
    random,  # noqa: F401
    rollout,  # noqa: F401
    saliency,  # noqa: F401
    smooth_grad,  # noqa: F401
    transformer_attribution,  # noqa: F401
)
