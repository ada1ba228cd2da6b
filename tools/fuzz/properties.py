"""What must hold of every explanation, whatever the architecture; each property is a function that says what failed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import whence
from tools.fuzz.case import DTYPES, Case, scalar
from tools.fuzz.model import Model
from whence.targets.seed import find_logits

#: of the largest value, where only the order of sums may differ; rounding of float32 is measured, not guessed
EXACT, LEAST, TIMES = 1e-6, 1e-3, 20.0
#: methods with a stabiliser, which counts for more where a model scales to smaller numbers: its effect is measured
DIVIDING = ("lrp", "partial-lrp", "transformer-attribution")
#: of surrogates that are fitted: of two features that explain alike, rounding chooses
FITTED = {"lime": 0.02, "kernel-shap": 0.02}
#: logits: torch's kernels round in other ways with gradients and without, fused and written out
WRITTEN_OUT = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.02}
#: the books, of the largest amount in them
BALANCED = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 1.0}


@dataclass(frozen=True)
class Outcome:
    """How a case ended: ``passed``, ``refused`` (with the sentence) or ``failed`` (with the property)."""

    kind: str
    name: str = ""
    said: str = ""


class FailedError(Exception):
    """A property that does not hold."""

    def __init__(self, name: str, said: str) -> None:
        super().__init__(said)
        self.name = name


class Halfway(Model):
    """Raises an error when its blocks are done."""

    def _answer(self, stream: Any) -> Any:
        raise ArithmeticError("half way")


def tried(case: Case) -> Outcome:
    """Try a case; whatever is raised that is no sentence of Whence is a failure."""
    return outcome_of(_broken if case.breaks else _whole, case)


def outcome_of(check: Callable[[Case], str | None], case: Case) -> Outcome:
    """How a check of a case ends; what it returns is the name of the outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Outcome("passed", check(case) or "")
        except FailedError as failed:
            return Outcome("failed", failed.name, str(failed))
        except whence.EngineError as error:
            return Outcome("failed", "raised EngineError", str(error)[:300])
        except whence.WhenceError as error:
            return Outcome("refused", type(error).__name__, str(error))
        except Exception as error:  # what is looked for
            return Outcome("failed", f"raised {type(error).__name__}", str(error)[:300])


def _broken(case: Case) -> None:
    """An error of the model is said to be its own, and nothing is left behind."""
    model = readied(Halfway(case.architecture).to(DTYPES[case.dtype]), case)
    with untouched(model, case):
        try:
            explained(case, model)
        except whence.InputError as error:
            if isinstance(error.__cause__, ArithmeticError):
                return
            raise
    raise FailedError("error", "the model's own error was swallowed")


def _whole(case: Case) -> None:
    model = readied(case.model(), case)
    with untouched(model, case):
        e = explained(case, model)
    _sound(case, model, e)
    _again(case, model, e)
    if case.dtype == "bfloat16":
        return
    allowed = rounding(case, e)
    _one_by_one(case, model, e, allowed)
    _written_otherwise(case, e, allowed)
    _books(case, e)
    _by_target(case, model, e)


def readied(model: nn.Module, case: Case) -> nn.Module:
    """The model as the case has it: in training mode, some weights frozen."""
    model.train(case.training)
    if case.training:
        next(model.children()).eval()
        for p in list(model.parameters())[::2]:
            p.requires_grad_(False)
    return model


def explained(case: Case, model: nn.Module, target: Any = ..., inputs: Any = None) -> whence.Explanation:
    """The explanation that the case asks for."""
    given = case.inputs() if inputs is None else inputs
    return whence.explain(model, given, case.method, placed(case, target), **case.asked)


def placed(case: Case, target: Any = ...) -> Any:
    """The target that the case asks for, or another; of a model that answers for each token, at one of them."""
    target = case.aim() if target is ... else target
    if case.architecture.pool == "every" and not case.architecture.causal and not callable(target):
        target = whence.At(1, target)
    return target


def distance(a: whence.Explanation, b: whence.Explanation) -> float:
    """The largest difference of scores in any stream, of the largest score."""
    if a.streams.keys() != b.streams.keys():
        return float("inf")
    pairs = [(s, b.streams[k]) for k, s in a.streams.items()]
    if any(x.shape != y.shape for x, y in pairs):
        return float("inf")
    largest = max(float(y.abs().max()) for _, y in pairs)
    apart = max(float((x.double() - y.double()).abs().max()) for x, y in pairs)
    return apart / max(largest, 1e-9)


def rounding(case: Case, e: whence.Explanation) -> float:
    """How far two correct computations may be apart: in float32, a multiple of its distance from float64."""
    if case.dtype == "float64" and case.method not in DIVIDING:
        return EXACT
    if case.dtype == "float64":
        twice = replace(case, options={**case.options, "eps": 2 * case.asked.get("eps", 1e-9)})
        target = case.aim() if e.target is None or case.target == "contrast" else e.target.tolist()
        return max(EXACT, 4 * distance(e, explained(twice, twice.model(), target)))
    double = replace(case, dtype="float64")
    target = case.aim() if e.target is None or case.target == "contrast" else e.target.tolist()
    return max(FITTED.get(case.method, LEAST), TIMES * distance(e, explained(double, double.model(), target)))


class untouched:  # noqa: N801  # reads as a sentence: with untouched(model, case)
    """A model, its inputs and torch's state are afterwards what they were, also after an error."""

    def __init__(self, model: nn.Module, case: Case) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before, self.random = snapshot(self.model), torch.get_rng_state()

    def __exit__(self, *_: Any) -> None:
        after = snapshot(self.model)
        changed = [str(k) for k in self.before.keys() | after.keys() if self.before.get(k) != after.get(k)]
        if changed:
            raise FailedError("untouched", f"changed: {', '.join(sorted(changed)[:5])}")
        if torch.overrides._get_current_function_mode_stack() or not torch.is_grad_enabled():
            raise FailedError("untouched", "a mode was left switched on")
        if not torch.equal(self.random, torch.get_rng_state()):
            raise FailedError("untouched", "torch's random state was moved")


def snapshot(model: nn.Module) -> dict[Any, Any]:
    """All that could be changed: weights, gradients, flags, hooks, attributes, global hooks."""
    scope = vars(torch.nn.modules.module)
    state: dict[Any, Any] = {n: len(v) for n, v in scope.items() if n.startswith("_global") and isinstance(v, dict)}
    for name, m in model.named_modules():
        state[name, "flags"] = m.training, type(m), tuple(sorted(m.__dict__)), tuple(sorted(vars(type(m))))
        state[name, "hooks"] = tuple(len(v) for k, v in sorted(m.__dict__.items()) if k.endswith("_hooks"))
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        value = p.detach().clone().view(torch.uint8).numpy().tobytes() if p.numel() else b""
        state[name, "value"] = id(p), p._version, p.requires_grad, p.grad, tuple(sorted(p.__dict__)), value
    return state


def _sound(case: Case, model: nn.Module, e: whence.Explanation) -> None:
    """The forward is the model's own, and scores are finite numbers, one a position, none at padding."""
    plain = _logits(case, model)
    of_logits = case.target == "function"  # a function of them, in which they may cancel
    apart = _apart(e.value, scalar(plain, 0)) if of_logits else _apart(e.logits, plain)
    if apart > WRITTEN_OUT[case.dtype]:
        allowed = TIMES * _own_rounding(case, plain)
        if case.dtype == "float64" or apart > allowed:
            raise FailedError("forward", f"logits differ by {apart:.1e}")
    for name, scores in e.streams.items():
        if not bool(torch.isfinite(scores).all()):
            raise FailedError("finite", f"scores of '{name}' are not finite")
        if scores.dim() != 2 or len(scores) != case.batch:
            raise FailedError("shape", f"scores of '{name}' are {list(scores.shape)}")
    padded = e.streams[padded_stream(e)]
    extra = (case.architecture.pool == "class") + case.architecture.registers
    if padded_stream(e) != "image" and padded.shape[1] not in (case.length, case.length + extra):
        raise FailedError("shape", f"{padded.shape[1]} scores for {case.length} tokens")
    for i, n in enumerate(case.lengths() if padded_stream(e) != "image" else []):
        row = padded[i][-case.length :]
        if bool((row[n:] if case.padding == "right" else row[: case.length - n]).any()):
            raise FailedError("padding", f"padding of sample {i} has a score")


def _own_rounding(case: Case, plain: Tensor) -> float:
    """How far the model itself is from what it says in float64, written in any of the ways that mean the same."""
    double = _logits(replace(case, dtype="float64"))
    alike = ("fused", "matmul", "einsum", "bmm") if case.architecture.attend != "module" else ()
    forms = [plain, *(_logits(case, case.model(attend=form)) for form in alike)]
    if case.padding == "none":  # samples that the model mixes are explained alone: torch rounds otherwise there
        forms.append(torch.cat([_logits(case, inputs=one) for one in alone(case)]))
    return max(max(_apart(form, double), _apart(scalar(form, 0), scalar(double, 0))) for form in forms)


def _logits(case: Case, model: nn.Module | None = None, inputs: dict[str, Tensor] | None = None) -> Tensor:
    """What the model itself says, without Whence: ``[batch, classes]``, or of each token."""
    model = case.model() if model is None else model
    was = [m.training for m in model.modules()]
    with torch.no_grad():
        plain = find_logits(model.eval()(**(case.inputs() if inputs is None else inputs)))
    for m, training in zip(model.modules(), was, strict=True):
        m.training = training
    assert plain is not None
    return plain


def _apart(logits: Tensor, plain: Tensor) -> float:
    """How far logits are from the plain ones, of the largest; of a model that answers for each token, from one of them.

    Torch's own forward differs by roundings with and without gradients, so bits cannot be compared.
    """
    if plain.dim() == 3 and logits.dim() == 2:
        distance = (plain.double() - logits[:, None].double()).abs().amax(-1).amin(1).max()
    else:
        distance = (plain.double() - logits.double()).abs().max()
    return float(distance / max(plain.abs().max(), logits.abs().max()))


def padded_stream(e: whence.Explanation) -> str:
    """The stream in which there may be padding: of the user's text, or numbers; of two, what the encoder reads."""
    return next((name for name in ("encoder", "text", "input") if name in e.streams), "image")


def _again(case: Case, model: nn.Module, e: whence.Explanation) -> None:
    """The same question has the same answer, to the bit."""
    again = explained(case, model)
    if not all(torch.equal(s, again.streams[k]) for k, s in e.streams.items()):
        raise FailedError("determinism", f"a second run differs by {distance(e, again):.1e}")


def _one_by_one(case: Case, model: nn.Module, e: whence.Explanation, allowed: float) -> None:
    """A sample is explained as it is alone and without padding."""
    if case.batch == 1 and case.padding == "none":
        return
    target = e.target
    for i, given in enumerate(alone(case)):
        aim = case.alone(i) if target is None or case.target == "contrast" else [int(target[i])]
        one = explained(case, model, aim, given)
        apart = distance(one, unpadded(case, e, i))
        if apart > allowed:
            name = "batch" if case.padding == "none" else "padding"
            raise FailedError(name, f"sample {i} alone differs by {apart:.1e} ({allowed:.0e} allowed)")


def alone(case: Case) -> Iterator[dict[str, Tensor]]:
    """Each sample, without padding."""
    inputs = case.inputs()
    lengths = case.lengths()
    for i in range(case.batch):
        given = {k: v[i : i + 1] for k, v in inputs.items()}
        if lengths:
            given = {k: v for k, v in given.items() if k not in ("attention_mask", "position_ids")}
            kept = slice(0, lengths[i]) if case.padding == "right" else slice(case.length - lengths[i], None)
            given = {k: v[:, kept] if k in ("input_ids", "values") else v for k, v in given.items()}
        yield given


def unpadded(case: Case, e: whence.Explanation, i: int) -> whence.Explanation:
    """One sample of an explanation; of the stream that is padded, what is not padding."""
    one, lengths, padded = e[i], case.lengths(), padded_stream(e)
    if not lengths or padded == "image":
        return one

    def cut(scores: Tensor) -> Tensor:
        extra = scores.shape[1] - case.length
        own = scores[:, extra:]
        own = own[:, : lengths[i]] if case.padding == "right" else own[:, case.length - lengths[i] :]
        return torch.cat([scores[:, :extra], own], 1)

    streams = {k: cut(s) if k == padded else s for k, s in one.streams.items()}
    return replace(one, scores=streams[padded], streams=streams)


def _written_otherwise(case: Case, e: whence.Explanation, allowed: float) -> None:
    """The same attention, fused or written out, is explained alike."""
    a = case.architecture
    if a.attend not in ("fused", "matmul", "einsum", "bmm") or a.masking == "flag":
        return
    other = {"fused": "matmul", "matmul": "einsum", "einsum": "bmm", "bmm": "matmul" if a.cap else "fused"}[a.attend]
    f = explained(case, case.model(attend=other), e.target.tolist() if case.target == "predicted" else case.aim())
    apart = distance(e, f)
    if apart > allowed:  # torch's fused kernel rounds more than products do, where scores are large
        allowed = max(allowed, rounding(replace(case, architecture=replace(a, attend=other)), f))
    if apart > allowed:
        raise FailedError("written otherwise", f"{a.attend} and {other} differ by {apart:.1e} ({allowed:.0e} allowed)")


def _books(case: Case, e: whence.Explanation) -> None:
    """What enters a block is what leaves it and what was absorbed there; scores sum to what entered the first."""
    if e.ledger is None:
        return
    amounts = [entry.amount.abs().max() for entry in e.ledger.entries]
    sizes = [e.ledger.total.abs().max(), e.value.abs().max(), *amounts, torch.tensor(0.1)]  # 0: of a contrast, 1 - 1
    largest = float(max([*sizes, e.ledger.sums.abs().max()] if e.ledger.sums.numel() else sizes))
    off = float(e.ledger.imbalance.abs().max()) / largest if e.ledger.imbalance.numel() else 0.0
    if off > BALANCED[case.dtype]:
        raise FailedError("books", f"the ledger is off by {off:.1e} of its largest amount")


def _by_target(case: Case, model: nn.Module, e: whence.Explanation) -> None:
    """Methods that are of a class answer otherwise for another, and the others do not."""
    if case.target == "function" or e.target is None:
        return
    other = e.target + 1
    classes = e.logits.shape[-1]
    f = explained(case, model, (other % classes).tolist())
    same = all(torch.equal(s, f.streams[k]) for k, s in e.streams.items())
    wanted = not whence.list_methods()[case.method].class_specific
    # a saturated tanh, a lasso of zeros, a token that sees itself alone: there is nothing to tell apart
    silent = all(int((s != 0).sum(1).max()) <= 1 for x in (e, f) for s in x.streams.values())
    if case.target != "contrast" and same != wanted and not silent:
        raise FailedError("target", "another target is explained " + ("alike" if same else "otherwise"))
