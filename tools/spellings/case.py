"""A case: which spelling stands in each slot of the model, and the usual spelling of the same function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tools.spellings import attentions, norms
from tools.spellings.activations import ACTIVATIONS
from tools.spellings.attentions import ATTENTIONS
from tools.spellings.embeddings import CLASS_TOKENS, EMBEDDINGS, POSITIONS
from tools.spellings.gates import GATES
from tools.spellings.heads import HEADS
from tools.spellings.linears import LINEARS
from tools.spellings.norms import NORMS
from tools.spellings.patches import PATCHES
from tools.spellings.pooling import POOLS
from tools.spellings.reorderings import ORDERS
from tools.spellings.residuals import RESIDUALS
from tools.spellings.rewrites import REWRITES

#: slot, kind (which function is computed), spelling; the first kind and the first spelling are the usual ones
SLOTS: Mapping[str, Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "norm": NORMS,
    "attention": ATTENTIONS,
    "residual": RESIDUALS,
    "activation": ACTIVATIONS,
    "gate": GATES,
    "pool": POOLS,
    "patches": PATCHES,
    "reordering": ORDERS,
    "head": HEADS,
    "linear": LINEARS,
    "embedding": EMBEDDINGS,
    "position": POSITIONS,
    "class-token": CLASS_TOKENS,
    "rewrite": REWRITES,
}

#: slots that only one kind of input has
OF_IMAGES, OF_IDS = ("patches", "class-token"), ("embedding",)

#: spellings that torch functions do not show; they may be noted or refused
OPAQUE = ("scripted", "vmapped", "checkpointed")

#: spellings that are composed of steps: the tables of the steps, and what joins them
GRAMMARS: Mapping[tuple[str, str], tuple[tuple[Mapping[str, Any], ...], Callable[..., Any]]] = {
    ("norm", "layer"): ((norms.CENTRES, norms.SQUARES, norms.DIVISIONS, norms.AFFINES), norms.stepwise_layer),
    ("norm", "rms"): ((norms.SQUARES, norms.DIVISIONS, norms.SCALES), norms.stepwise_rms),
    ("attention", "plain"): (attentions.STEPS, attentions.stepwise),
}

Entry = tuple[str, str, str]


@dataclass(frozen=True)
class Case:
    """A model: its inputs, its size, and a spelling in each slot.

    Attributes:
        entries: slot, kind and spelling; several of one slot are used by the blocks in turns.
        reads: ``ids`` or ``image``.
        blocks: how many.
        weights: their seed.
    """

    entries: tuple[Entry, ...] = ()
    reads: str = "ids"
    blocks: int = 2
    weights: int = 0

    @property
    def name(self) -> str:
        """The name by which the command line takes it."""
        words = ["/".join(entry) for entry in self.entries]
        words += [f"{k}/{v}" for k, v in self._sizes().items() if v != getattr(Case, k)]
        if self.reads == "image" and not any(e[0] in OF_IMAGES for e in self.entries):
            words.append("reads/image")
        return "+".join(words) or "usual"

    def _sizes(self) -> dict[str, int]:
        return {"blocks": self.blocks, "weights": self.weights}

    @property
    def usual(self) -> Case:
        """The same function in the usual spelling."""
        kinds = dict.fromkeys((slot, kind) for slot, kind, _ in self.entries)
        entries = [(s, k, "usual") for s, k in kinds if k != self._first(s) or s == "gate"]
        return replace(self, entries=tuple(e for e in entries if e[0] not in ("reordering", "rewrite")))

    @property
    def unfused(self) -> Case:
        """The usual spelling with attention in single operations, which coverage lists one by one."""
        usual, kind = self.usual, self.kind("attention")
        others = tuple(e for e in usual.entries if e[0] != "attention")
        return replace(usual, entries=(("attention", kind, attentions.UNFUSED[kind]), *others))

    def _first(self, slot: str) -> str:
        """Return the kind of a slot that is not named; under a causal mask, only the last token sees all others."""
        if slot == "pool" and any(entry[:2] == ("attention", "causal") for entry in self.entries):
            return "last"
        return next(iter(SLOTS[slot]))

    def spelled(self, slot: str) -> list[Callable[..., Any]]:
        """The functions of a slot, of which the blocks take turns."""
        chosen = [entry for entry in self.entries if entry[0] == slot]
        return [function(*entry) for entry in chosen] or [function(slot, self._first(slot), "usual")]

    def kind(self, slot: str) -> str:
        """Which function is computed in a slot."""
        return next((k for s, k, _ in self.entries if s == slot), self._first(slot))

    def has(self, slot: str) -> bool:
        """Return whether a spelling of this slot was chosen."""
        return any(entry[0] == slot for entry in self.entries)

    @property
    def opaque(self) -> bool:
        """Whether a spelling is computed where torch functions do not show it."""
        return any(name in OPAQUE for _, _, name in self.entries)

    def changes(self) -> Iterator[Callable[[Case], Case]]:
        """Yield functions that make a case smaller: without an entry, in its usual spelling, of the usual size."""
        for entry in self.entries:
            yield lambda case, entry=entry: replace(case, entries=tuple(e for e in case.entries if e != entry))
            usual = (*entry[:2], "usual")
            yield lambda case, entry=entry, usual=usual: replace(
                case, entries=tuple(dict.fromkeys(usual if e == entry else e for e in case.entries))
            )
        yield lambda case: replace(case, blocks=Case.blocks)
        yield lambda case: replace(case, weights=Case.weights)
        yield lambda case: case if any(case.has(slot) for slot in OF_IMAGES) else replace(case, reads=Case.reads)


def function(slot: str, kind: str, name: str) -> Callable[..., Any]:
    """Return the function of a spelling, named or composed of steps (``mean.square.pow.addcmul``)."""
    table = SLOTS[slot][kind]
    if name == "usual":
        return next(iter(table.values()))
    if name in table:
        return table[name]
    tables, join = GRAMMARS[slot, kind]
    return join(*(step[part] for step, part in zip(tables, name.split("."), strict=True)))


def case_of(name: str) -> Case:
    """Return the case of a name."""
    case, entries = Case(), []
    for word in name.split("+"):
        parts = word.split("/")
        if parts[0] in ("blocks", "weights"):
            case = replace(case, **{parts[0]: int(parts[1])})
        elif parts[0] == "reads":
            case = replace(case, reads=parts[1])
        elif word != "usual":
            slot, kind, spelling = parts
            function(slot, kind, spelling)
            entries.append((slot, kind, spelling))
            case = replace(case, reads="image") if slot in OF_IMAGES else case
    return replace(case, entries=tuple(entries))


def named() -> list[Case]:
    """Return a case for every named spelling; orders of whole sequences are tried on ids and on images."""
    cases = []
    for slot, kinds in SLOTS.items():
        for kind, table in kinds.items():
            for name in list(table)[1:]:
                case = Case(((slot, kind, name),), "image" if slot in OF_IMAGES else "ids")
                cases.append(case)
                if slot == "reordering" and kind in ("blocks", "tracked"):
                    cases.append(replace(case, reads="image"))
    return cases


def drawn(seed: int, index: int) -> Case:
    """Return a composition: a random spelling in each slot at once, another one for each block."""
    rng = random.Random(f"{seed}:{index}")
    reads, blocks = rng.choice(("ids", "ids", "image")), rng.choice((1, 2, 2, 3))
    left_out = {rng.choice(("activation", "gate")), *(OF_IDS if reads == "image" else OF_IMAGES)}
    usual = rng.random()  # how many slots stay usual
    entries: list[Entry] = []
    for slot, kinds in SLOTS.items():
        kind = rng.choice([next(iter(kinds)), *kinds])
        rare = slot in ("embedding", "class-token", "rewrite")
        if slot not in left_out and rng.random() > (0.8 if rare else usual * 0.7):
            times = 1 if slot in ("reordering", "rewrite", "pool", "head", *OF_IMAGES, *OF_IDS, "position") else blocks
            drawn_names = dict.fromkeys(spelling(rng, slot, kind) for _ in range(times))
            entries += [(slot, kind, name) for name in drawn_names]
    return settled(Case(tuple(entries), reads, blocks, rng.randrange(4)))


def spelling(rng: random.Random, slot: str, kind: str) -> str:
    """Draw a spelling's name; one of two is composed of steps, where there are steps."""
    if (slot, kind) in GRAMMARS and rng.random() < 0.5:
        tables, _ = GRAMMARS[slot, kind]
        return ".".join(rng.choice(list(table)) for table in tables)
    return rng.choice([name for name in list(SLOTS[slot][kind])[1:] if name not in OPAQUE])


def settled(case: Case) -> Case:
    """Return the nearest case whose parts compute one function.

    Causal, biased and rotary attention do not commute with other orders of tokens; a head that reads all tokens cannot
    follow a pooled one that was found where it was moved.
    """
    entries = case.entries
    if case.kind("attention") in ("causal", "biased", "rotary", "rotary-pairs"):
        entries = tuple(
            e for e in entries if e[:2] not in [("reordering", k) for k in ("blocks", "attention", "tracked")]
        )
    if case.kind("reordering") == "tracked":
        entries = tuple(e for e in entries if e[:2] not in (("head", "excitation"), ("head", "attention-pool")))
    return replace(case, entries=entries)
