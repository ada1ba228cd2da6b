"""Which operations an explanation met, and by which rule each was passed: nothing is passed over in silence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import Node

#: Kinds of operation for which the plain gradient is the rule: they are linear in what they are given.
EXACT = {
    "structural", "selecting", "extreme", "identity", "linear", "convolution", "reduce", "scale", "add",
    "shift-by-constant", "center", "discrete",
}  # fmt: skip
#: Kinds of operation that are no known part of a Transformer: listed whatever their rule.
UNVERIFIED = {"function", "ratio", "unknown"}


#: the name of a step of the autograd graph that belongs to an operation of torch itself
NATIVE = re.compile(r"[A-Za-z]+Backward\d+")


class Coverage:
    """Operations seen, with a rule, and left to the plain gradient.

    Attributes:
        seen: how often each operation occurred on a path from the input to the output.
        ruled: the rules by which it was passed; ``"gradient (linear)"`` where the plain gradient is exact.
        plain: the operations that no rule covers, left to the plain gradient (under LRP, to its default rule), and
            those that are no known part of a Transformer, such as an exponential without a softmax.

    Example:
        >>> e.coverage.plain
        {'tanh': 1}
    """

    def __init__(
        self,
        seen: Mapping[str, int] | None = None,
        ruled: Mapping[str, str] | None = None,
        plain: Mapping[str, int] | None = None,
    ) -> None:
        self.seen = Counter(seen or {})
        self.ruled = dict(ruled or {})
        self.plain = Counter(plain or {})
        self._met: list[tuple[set[int], str, str, str | None]] = []
        self._foreign: Counter[str] = Counter()
        self._doubtful: dict[int, str] = {}
        self.opaque: list[str] = []  # kernels that may be attentions
        self.rounds_input = False  # whether quantised layers round what they read, too
        self.hidden: list[str] = []  # torch's own operations in code that is not seen: TorchScript, vmap, extensions

    def count(self, nodes: Iterable[Node], name: str, kind: str, rule: str | None) -> None:
        """Note one operation by its outputs, with the name of its rule."""
        self._met.append(({node.seq for node in nodes}, name, kind, rule))

    def doubt(self, node: Node, name: str) -> None:
        """List an operation under another name, whatever its rule, because its kind is no certain part of attention."""
        self._doubtful[node.seq] = name

    def trust(self, nodes: Iterable[Node]) -> None:
        """Take back the doubt in some operations."""
        for node in nodes:
            self._doubtful.pop(node.seq, None)

    def foreign(self, name: str, inputs: int, new: bool = False) -> None:
        """Note a tensor made by code that torch functions do not show (a custom autograd function) from some inputs.

        Args:
            name: of the step of the autograd graph that made it.
            inputs: how many tensors of the trace it was made from.
            new: whether the tensor itself was never seen; others were overwritten.
        """
        scripted = name == "CppFunction"
        name = "TorchScript" if scripted else name
        if scripted or (new and NATIVE.fullmatch(name)):
            self.hidden.append(name)
        self._foreign[name] += 1
        self.suspect(name.removesuffix("Backward"), inputs)

    def rounds(self) -> None:
        """Note a quantised layer that rounds what it reads, too."""
        self.rounds_input = True

    @property
    def has_custom_functions(self) -> bool:
        """Whether part of the model runs in code that torch functions do not show."""
        return bool(self._foreign)

    def suspect(self, name: str, inputs: int) -> None:
        """Note a kernel of which nothing can be seen, if it may be an attention: by its name, or its three inputs."""
        if inputs > 2 or any(word in name.lower() for word in ("attn", "attention", "flash")):
            self.opaque.append(name)

    def settle(self, reached: set[int]) -> None:
        """Keep the operations that relevance can reach from the target; what a rule has cut off is part of the rule."""
        self.seen = Counter(self._foreign)
        self.plain = Counter(self._foreign)
        rules: dict[str, set[str]] = {}
        for made, name, kind, rule in self._met:
            if made.isdisjoint(reached):
                continue
            name = next((self._doubtful[seq] for seq in made if seq in self._doubtful), name)
            self.seen[name] += 1
            if name in self._doubtful.values() or kind in UNVERIFIED or (rule is None and kind not in EXACT):
                self.plain[name] += 1
                continue
            rules.setdefault(name, set()).add("gradient (linear)" if rule is None else rule)
        self.ruled = {name: ", ".join(sorted(found)) for name, found in rules.items()}

    def record(self) -> dict[str, Any]:
        """What is kept of it in a file."""
        return {"seen": dict(self.seen), "ruled": self.ruled, "plain": dict(self.plain)}

    @staticmethod
    def of(record: Mapping[str, Any]) -> Coverage:
        """The coverage of which a record was kept."""
        return Coverage(record["seen"], record["ruled"], record["plain"])

    def __eq__(self, other: object) -> bool:
        return self.record() == other.record() if isinstance(other, Coverage) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows while a model runs

    @property
    def share(self) -> float:
        """The share of operations, counted as they occurred, that had a rule."""
        total = sum(self.seen.values())
        return 1.0 - sum(self.plain.values()) / total if total else 1.0

    def __repr__(self) -> str:
        plain = ", ".join(f"{name} x {n}" for name, n in self.plain.most_common()) or "none"
        return f"Coverage({sum(self.seen.values())} operations, {self.share:.1%} with a rule; plain gradient: {plain})"
