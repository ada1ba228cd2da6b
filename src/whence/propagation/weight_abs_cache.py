"""``|w|`` of weights, kept from one explanation to the next while the weights live.

Relevance through a linear layer needs the weight_abs of its weights. Making them anew costs as much as a good part of
a forward on a single sample, so they are kept: a second copy of the linear layers' weights, up to a bound of 1 GiB
over all models; weights beyond it are made anew each time. A weight that was changed since is made anew too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

BOUND = 2**30


class WeightAbsCache:
    """A store of weight_abs, by parameter.

    Example:
        >>> WeightAbsCache().of(torch.nn.Parameter(torch.tensor([-1.0]))).item()
        1.0
    """

    def __init__(self, bound: int = BOUND) -> None:
        self.bound = bound
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def of(self, parameter: Tensor) -> Tensor | None:
        """``|parameter|``; ``None`` where there is no room to keep it."""
        if parameter.is_inference():
            return None
        state = (parameter._version, parameter.data_ptr(), parameter.dtype, parameter.device)
        found = self._kept.get(parameter)
        if found is not None and found[0] == state:
            magnitude: Tensor = found[1]
            return magnitude
        self._kept.pop(parameter, None)
        if self.size + parameter.numel() * parameter.element_size() > self.bound:
            return None
        magnitude = torch.abs(parameter.detach())
        self._kept[parameter] = (state, magnitude)
        return magnitude

    @property
    def size(self) -> int:
        """Bytes kept."""
        return sum(m.numel() * m.element_size() for _, m in self._kept.values())

    def clear(self) -> None:
        """Free everything."""
        self._kept.clear()


#: The store that explanations share.
weight_abs = WeightAbsCache()
