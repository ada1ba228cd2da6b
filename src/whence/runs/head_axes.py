"""Which axes of an attention are its heads, and which are windows of tokens.

Both are axes of the map besides queries and keys: ``[batch * windows, heads, queries, keys]``. What the heads wrote
comes to stand side by side as features of the tokens, and the output projection sums over it; windows stay apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from torch import Tensor

from ..tracing.attention_record import AttentionRecord
from ..tracing.axes import Axis
from ..tracing.node import Node, walk
from ..tracing.tensor_info import node_of


def nodes_behind(ends: Iterable[Node]) -> list[Node]:
    """Return some tensors and all that they were made from, in the order of the forward pass."""
    return sorted(walk(ends), key=lambda node: node.seq)


def head_axes(record: AttentionRecord, nodes: Sequence[Node]) -> list[Axis] | None:
    """Which of an attention's own axes are heads; ``None`` if that cannot be told.

    Args:
        record: the attention.
        nodes: of the forward, in their order.
    """
    assert record.output is not None
    own, made = record.own(), node_of(record.output)
    if not own:
        return []
    features = {atom for dim in made.axes if dim not in record.axes for atom in dim}
    following = {made.seq}
    for node in nodes[bisect_right(nodes, made.seq, key=lambda n: n.seq) :]:
        before = [parent for parent in node.parents if parent.seq in following]
        if not before or node.residual:
            continue
        joined = [atom for dim in node.axes if features & set(dim) for atom in dim if atom in own]
        if joined:
            return joined
        if node.kind == "linear":
            summed = [atom for atom in own if atom not in _atoms(node)]
            return summed if set(own) <= _atoms(before[0]) else _apart(record)
        following.add(node.seq)
    return _apart(record)


def by_head(carried: Tensor, record: AttentionRecord, nodes: Sequence[Node]) -> Tensor | None:
    """``[batch, heads]``: what the heads of all windows carried, summed over windows.

    Args:
        carried: ``[batch, heads and windows]``, in the order of the attention's output.
        record: the attention.
        nodes: of the forward, in their order.

    Returns:
        ``None`` if heads cannot be told from windows.
    """
    assert record.output is not None
    heads, own = head_axes(record, nodes), record.own()
    order = [atom for dim in node_of(record.output).axes for atom in dim if atom in own]
    if heads is None or len(order) != len(own):
        return None
    windows = [1 + i for i, atom in enumerate(order) if atom not in heads]
    apart = carried.reshape(len(carried), *(atom.size for atom in order))
    return (apart.sum(windows) if windows else apart).reshape(len(carried), -1)  # one head where all are windows


def _apart(record: AttentionRecord) -> list[Axis] | None:
    """Told by what values are projected from: it has the windows, and no heads yet."""
    if record.reads is None or record.axes[record.key] not in record.reads.axes:
        return None
    return [atom for atom in record.own() if atom not in _atoms(record.reads)]


def _atoms(node: Node) -> set[Axis]:
    return {atom for dim in node.axes for atom in dim}
