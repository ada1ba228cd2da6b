"""How results are compared, and how refusals are: one ``close``, one ``same``, one ``refused``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import whence

EXACT = 1e-9  # float64, relative to the largest value of the array: our numbers and published ones
ROUNDING = 1e-10  # the same computation twice, in another order


def array(x):
    """Return a tensor (detached) or anything else as a NumPy array."""
    return x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.float64)


def relative(a, b, scale=None):
    """Return ``max |a - b| / max |b|``, or over ``max |scale|``; 0 of empty arrays. Shapes must agree."""
    a, b = array(a), array(b)
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape} differ"
    if not a.size:
        return 0.0
    return float(np.abs(a - b).max() / max(np.abs(b if scale is None else array(scale)).max(), 1e-30))


def close(a, b, tolerance=ROUNDING, scale=None):
    """Assert that two arrays are the same but for rounding."""
    assert relative(a, b, scale) <= tolerance


def same(a, b, tolerance=ROUNDING, entries=True):
    """Assert that two explanations are the same but for rounding: scores, target, ledger, layers, heads, origins.

    Without ``entries``, the ledgers' sums are: a padded batch has operations that a sample alone has not.
    """
    close(a.scores, b.scores, tolerance)
    close(a.logits, b.logits, tolerance)
    close(a.value, b.value, tolerance, np.append(array(b.value), array(b.logits)))  # rounds as the largest logit
    assert torch.equal(a.special, b.special)
    assert a.origins == b.origins
    assert a.target_names == b.target_names
    assert (a.target is None) == (b.target is None)
    assert a.target is None or torch.equal(a.target, b.target)
    assert a.streams.keys() == b.streams.keys()
    for name in a.streams:
        close(a.streams[name], b.streams[name], tolerance)
    for mine, other in ((a.layers, b.layers), (a.heads, b.heads)):
        assert (mine is None) == (other is None)
        if mine is not None:
            close(mine, other, tolerance)
    assert (a.ledger is None) == (b.ledger is None)
    if a.ledger is not None:
        same_ledger(a.ledger, b.ledger, tolerance, [] if b.layers is None else [b.layers], entries)


def same_ledger(a, b, tolerance, layers, entries):
    """Assert that two ledgers are the same but for rounding; ``layers`` is what their sums are taken of."""
    size = torch.cat([t.flatten() for t in (b.sums, b.total, *layers)])  # of what sums are taken, and their differences
    close(a.total, b.total, tolerance)
    close(a.sums, b.sums, tolerance, size)
    if not entries:
        return
    assert [(x.seq, x.kind, x.name) for x in a.entries] == [(x.seq, x.kind, x.name) for x in b.entries]
    if a.entries:
        mine, other = (torch.stack([x.amount for x in ledger.entries]) for ledger in (a, b))
        close(mine, other, tolerance, torch.cat([other.flatten(), size]))


def refused(error, match, call, *args, **kwargs):
    """Assert that a call is refused by one of Whence's errors, in these words; return the whole message."""
    with pytest.raises(error, match=match) as info:
        call(*args, **kwargs)
    assert isinstance(info.value, whence.WhenceError)
    for model in (arg for arg in args if isinstance(arg, nn.Module)):
        assert not any(hasattr(p, "_whence") for p in model.parameters())
    return str(info.value)
