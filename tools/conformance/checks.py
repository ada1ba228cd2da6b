"""What is checked of a family; each check is a cell of the table."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import whence
from tools.conformance.family import Family, Inputs
from tools.conformance.patch_order import misplaced
from tools.conformance.regions import counted
from whence.methods.registry import create
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare
from whence.runs.run import Run
from whence.tracing.node import walk
from whence.tracing.tensor_info import node_of

FORWARD, INVARIANT, BALANCED = 1e-5, 1e-4, 1e-4  # HuggingFace computes norms and softmax in float32 in many families
CHEAP = ("conservative-lrp", "gradient-x-input", "generic-attention", "rollout")


@dataclass
class Row:
    """A family's row: what was seen, whether each check passed, and which methods apply.

    Attributes:
        seen: what stands in the table: attentions, streams, numbers of regions, coverage, conservation.
        passed: each check, by name; ``None``: not asked of this family.
        methods: each method, with the reason why it does not apply, or an empty string.
        failed: what went wrong, in words.
    """

    family: Family
    seen: dict[str, str] = field(default_factory=dict)
    passed: dict[str, bool | None] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def check(self, name: str, passed: bool, why: str = "") -> None:
        """Enter a cell."""
        self.passed[name] = passed
        if not passed:
            self.failed.append(f"{name}: {why}")


def close(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))


def explain(family: Family, model: nn.Module, inputs: Inputs, method: str, **options: Any) -> whence.Explanation:
    """An explanation, whose warnings are not news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return whence.explain(model, inputs, method, family.target, **options)


def row(family: Family, methods: list[str]) -> Row:
    """Run all checks on a family, with some methods."""
    out = Row(family)
    model, inputs = family.model(), family.batch(2)
    try:
        _structure(out, model, inputs)
    except whence.WhenceError as error:
        out.check("attentions", False, str(error))
        return out
    _regions(out)
    _methods(out, model, inputs, methods)
    cheap = [m for m in CHEAP if out.methods.get(m) == ""]
    _batch(out, model, inputs, cheap)
    _padding(out, model, cheap)
    _implementations(out, inputs, cheap)
    _patches(out, model)
    return out


def attentions(run: Run) -> int:
    """Return how many attentions the trace found: those on record, and those in pieces (a sliding window).

    Several products with slices of one map are one attention.
    """
    recorded = [node_of(record.output) for record in run.trace.attentions if record.output is not None]
    seen = {node.seq for node in recorded}
    pieces = [node for node in walk([node_of(run.seed.output)]) if node.kind == "mix" and node.seq not in seen]
    known, others = (
        {parent.softmax for node in nodes for parent in node.parents if parent.softmax is not None}
        for nodes in (recorded, pieces)
    )
    return len(recorded) + len(others - known)


def _structure(out: Row, model: nn.Module, inputs: Inputs) -> None:
    family = out.family
    with forwarded(model, *prepare(model, family.batch(1)), create("conservative-lrp", {}), [family.target]) as (run,):
        found = attentions(run)
    e = explain(family, model, inputs, "conservative-lrp")
    with torch.no_grad():
        plain = family.target(model(**inputs))
    streams = {name: s.shape[1] for name, s in e.streams.items()}
    assert e.ledger is not None
    off = float((e.ledger.imbalance.abs().amax(1) / e.ledger.sums.abs().amax(1).clamp(min=1e-12)).max())
    out.seen |= {
        "attentions": str(found),
        "streams": ", ".join(f"{name} {n}" for name, n in streams.items()),
        "coverage": f"{100 * e.coverage.share:.0f} %",
        "plain": ", ".join(sorted(e.coverage.plain)),
        "imbalance": f"{off:.0e}",
    }
    out.check("attentions", found == family.attentions, f"{found} found, {family.attentions} expected")
    out.check("streams", streams == dict(family.streams), f"{streams} found, {dict(family.streams)} expected")
    out.check("forward", close(e.value, plain) < FORWARD, f"traced and plain differ by {close(e.value, plain):.1e}")
    out.check("books", off < BALANCED, f"the ledger of conservative-lrp is off by {off:.1e}")


def _regions(out: Row) -> None:
    """The trace finds as many norms, activations, gates and residual sums as the model computes."""
    counts = counted(out.family)
    out.seen |= {name: str(count) for name, count in counts.items()}
    missed = [f"{c.found} {name} found, {c.expected} expected" for name, c in counts.items() if c.missed]
    out.check("regions", not missed, "; ".join(missed))


def _methods(out: Row, model: nn.Module, inputs: Inputs, methods: list[str]) -> None:
    """A method applies, or refuses with a sentence; anything else is a failure."""
    wrong = []
    for name in methods:
        try:
            e = explain(out.family, model, inputs, name, **whence.list_methods()[name].quick)
            out.methods[name] = ""
            if not all(torch.isfinite(s).all() for s in e.streams.values()):
                wrong.append(f"{name}: scores are not finite")
        except whence.WhenceError as error:
            if isinstance(error, whence.EngineError):
                wrong.append(f"{name}: {error}")
            else:
                out.methods[name] = str(error)
        except Exception as error:  # whatever happens to a family is a finding
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    out.check("methods", not wrong, "; ".join(wrong))


def _batch(out: Row, model: nn.Module, inputs: Inputs, methods: list[str]) -> None:
    """Samples of a batch are explained as they are alone."""
    worst = 0.0
    for name in methods:
        together = explain(out.family, model, inputs, name)
        for i in range(2):
            given = {k: v[i : i + 1] if v.dim() and len(v) == 2 else v for k, v in inputs.items()}
            alone = explain(out.family, model, given, name)
            worst = max(worst, *(close(s[i : i + 1], alone.streams[k]) for k, s in together.streams.items()))
    out.check("batch", worst < INVARIANT, f"a batch differs from its samples by {worst:.1e}")


def _patches(out: Row, model: nn.Module) -> None:
    """Each patch is drawn where its pixels are."""
    wrong = misplaced(out.family, model)
    out.passed["patches"] = None
    if wrong is not None:
        out.check("patches", not wrong, wrong)


def _padding(out: Row, model: nn.Module, methods: list[str]) -> None:
    """Padding has no score, and changes none."""
    family = out.family
    out.passed["padding"] = None
    if not family.mask:
        return
    inputs = family.batch(1)
    padded = {
        k: torch.nn.functional.pad(v, (0, 0) * (v.dim() - 2) + (0, 2), value=family.padded[k])
        if k in family.padded
        else v
        for k, v in inputs.items()
    }
    worst, silent = 0.0, True
    for name in methods:
        short, long = (explain(family, model, given, name).scores for given in (inputs, padded))
        silent = silent and not bool(long[:, short.shape[1] :].any())
        worst = max(worst, close(long[:, : short.shape[1]], short))
    out.check("padding", silent and worst < INVARIANT, f"padding changes scores by {worst:.1e} or has some itself")


def _implementations(out: Row, inputs: Inputs, methods: list[str]) -> None:
    """Eager and fused attention are explained alike."""
    family = out.family
    out.passed["eager = sdpa"] = None
    if len(family.implementations) < 2:
        return
    one, two = (family.model(name) for name in family.implementations)
    two.load_state_dict(one.state_dict())
    worst = 0.0
    for name in methods:
        a, b = (explain(family, model, inputs, name) for model in (one, two))
        worst = max(worst, *(close(a.streams[k], s) for k, s in b.streams.items()))
    out.check("eager = sdpa", worst < INVARIANT, f"the implementations differ by {worst:.1e}")
