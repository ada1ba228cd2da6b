"""A cache of ``|w|`` for model weights, shared by all explanations while the weights are alive.

Propagating relevance through a linear layer needs the absolute values of its weights. Recomputing them costs a
considerable part of a forward pass on a single sample, so they are cached: a second copy of the linear layers' weights,
up to a bound of 1 GiB over all models. Weights beyond the bound are recomputed each time, and so is a weight that was
changed since.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..capture.tape import depends_on
from ..tracing.quantised import is_quantised

BOUND = 2**30


class WeightAbsCache:
    """A cache of absolute weights, by parameter.

    Example:
        >>> WeightAbsCache().of(torch.nn.Parameter(torch.tensor([-1.0]))).item()
        1.0
    """

    def __init__(self, bound: int = BOUND) -> None:
        self.bound = bound
        self._entries: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def of(self, parameter: Tensor) -> Tensor | None:
        """Return ``|parameter|``, or ``None`` where it does not fit into the cache."""
        if parameter.is_inference() or is_quantised(parameter):  # changes of what it holds are not counted
            return None
        depends_on(parameter)
        state = (parameter._version, parameter.data_ptr(), parameter.dtype, parameter.device)
        found = self._entries.get(parameter)
        if found is not None and found[0] == state:
            magnitude: Tensor = found[1]
            return magnitude
        self._entries.pop(parameter, None)
        if self.size + parameter.numel() * parameter.element_size() > self.bound:
            return None
        magnitude = torch.abs(parameter.detach())
        self._entries[parameter] = (state, magnitude)
        return magnitude

    @property
    def size(self) -> int:
        """The size of the cache in bytes."""
        return sum(m.numel() * m.element_size() for _, m in self._entries.values())

    def clear(self) -> None:
        """Empty the cache."""
        self._entries.clear()


#: The cache that all explanations share.
weight_abs = WeightAbsCache()
