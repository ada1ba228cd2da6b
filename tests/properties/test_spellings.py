"""Equivalent spellings of one model are explained alike; and how the tool reports those that are not."""

from __future__ import annotations

import time
import warnings
from types import SimpleNamespace

import pytest
import torch

import whence
from tools.spellings import compare
from tools.spellings import run as tool
from tools.spellings.case import GRAMMARS, SLOTS, Case, case_of, drawn, named
from tools.spellings.compare import CORE, Answer, Outcome, answer, check_function, compared, outcome
from tools.spellings.model import inputs

MAPS = ("generic-attention", "rollout", "attention")
#: slots that cannot change attention maps; methods that read maps alone are left to `make fuzz-spellings` there
OUTSIDE_MAPS = ("norm", "activation", "gate", "linear", "head", "position")
LEAST = {
    "norm": 25, "attention": 30, "residual": 18, "activation": 20, "gate": 5, "pool": 12, "patches": 8,
    "reordering": 12, "head": 2,
}  # fmt: skip


#: spellings that are not followed, but said to be: a Python loop over single tokens, heads folded into queries
NOT_FOLLOWED = {
    "norm/layer/by-token", "residual/sum/slice-sum", "attention/plain/loop-over-queries",
    "attention/grouped/folded-queries", "attention/multi-query/folded-bmm", "attention/sink/fused",
}  # fmt: skip
OPEN = [case for case in named() if not case.opaque and case.name not in NOT_FOLLOWED]
#: compositions that failed once, with methods for which they did
COMPOSED = {
    "residual/sum/stream-scale+residual/sum/usual+position/sum/tokens-first": "attn-lrp,libragrad,lrp",
    "residual/sum/linear-identity+residual/sum/usual+position/sum/by-token": "conservative-lrp,transformer-attribution",
    "residual/sum/slice-sum+residual/sum/usual": "attn-lrp,conservative-lrp,libragrad,lrp",
    "residual/sum/usual+residual/sum/slice-sum": "libragrad,res-lrp",
    "residual/sum/negated-sum+residual/sum/usual+linear/affine/split-outputs": "transformer-attribution",
    "residual/sum/sub-alpha+reordering/blocks/gather": "res-lrp",
    "residual/sum/addmm+reordering/blocks/gather": "lrp,transformer-attribution",
    "residual/sum/bias-after+rewrite/operands/differences-for-sums": "flash-trace,lrp,res-lrp,token-tm",
    "residual/sum/bias-after": "flash-trace,token-tm",
    "residual/sum/into-branch+linear/affine/addmm": "lrp,transformer-attribution",
    "residual/sum/halved+reordering/inputs/matrix+linear/affine/split-outputs": "bi-attention,rollout",
    "norm/layer-bare/std-mean+residual/sum/into-branch": "rollout,transformer-attribution",
    "attention/multi-query/folded-bmm+blocks/1": "attention,generic-attention,rollout",
    "attention/causal/mask-after": "lrp",
    "attention/plain/values-projected-first+linear/affine/weight-first": "lrp,partial-lrp,transformer-attribution",
    "attention/plain/running-softmax": "lrp,pa-lrp",
    "linear/affine/split-inputs+rewrite/operands/commuted": "lrp,partial-lrp",
    "reordering/inputs/first-to-end+embedding/table/one-hot": "libragrad,transformer-attribution",
    "reordering/blocks/restack": "bi-attention",
    "attention/causal/functional-module+residual/sum/transposed": "attn-lrp,saliency",
    "attention/plain/einsum-implicit.in-place.query-blocks.to-dtype.query-blocks": "conservative-lrp,lrp",
    "linear/affine/tensordot": "flash-trace",
    "linear/affine/inner": "flash-trace",
    "norm/layer/folded-quotient": "bi-attention,lrp,partial-lrp",
}


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.name)
def test_a_spelling_has_the_scores_of_the_usual_one(case):
    methods = [m for m in CORE if m not in MAPS or case.entries[0][0] not in OUTSIDE_MAPS]
    outcomes = compared(case, methods)
    assert {m: o for m, o in outcomes.items() if o.kind != "equal"} == {}


@pytest.mark.parametrize(
    "case", [case for case in named() if case.opaque or case.name in NOT_FOLLOWED], ids=lambda case: case.name
)
def test_what_is_not_followed_is_equal_noted_or_refused(case):
    assert {m: o for m, o in compared(case, CORE).items() if o.failed} == {}


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composition_that_failed_once_is_equal_noted_or_refused(name):
    assert {m: o for m, o in compared(case_of(name), COMPOSED[name].split(",")).items() if o.failed} == {}


def test_there_are_as_many_spellings_as_promised():
    counts = tool.spelling_counts()
    assert {slot: n for slot, n in LEAST.items() if counts[slot] < n} == {}
    assert len({case.name for case in named()}) == len(named())


def test_compositions_compute_the_usual_function_and_have_names():
    for index in range(40):
        case = drawn(5, index)
        check_function(case)
        assert case_of(case.name) == case
        assert case.usual.usual == case.usual


def test_steps_can_be_composed():
    for (slot, kind), (tables, _) in GRAMMARS.items():
        case = case_of(f"{slot}/{kind}/" + ".".join(list(table)[-1] for table in tables))
        check_function(case)


def explanation(scores, plain=(), patches=None):
    coverage = SimpleNamespace(plain=plain)
    grid = None if patches is None else (1, 2)
    return SimpleNamespace(scores=torch.tensor([scores]), coverage=coverage, grid=grid, patches=patches)


def fake(scores, plain=(), warning=None, error=None):
    """An ``explain`` that returns these scores, warns, or raises."""

    def explain(model, given, **options):
        if warning is not None:
            warnings.warn(warning, stacklevel=1)
        if error is not None:
            raise error
        return explanation(scores, plain)

    return explain


def answered(*args, **options):
    return answer(None, torch.zeros(1, 2), "attn-lrp", fake(*args, **options))


@pytest.mark.parametrize(
    ("other", "kind", "said"),
    [
        (answered([1.0, 2.0 + 1e-7]), "equal", ""),
        (answered([1.0, 2.0], ["tanh"]), "equal", ""),
        (answered([1.0, 3.0]), "SILENT", "scores 5e-01"),
        (answered([1.0, float("nan")]), "SILENT", "scores nan"),
        (answered([1.0, 2.0, 3.0]), "SILENT", "scores inf"),
        (answered([1.0, 3.0], ["exp"]), "SILENT", "scores 5e-01"),
        (answered([1.0, 3.0], ["exp", "tanh"]), "noted", "scores 5e-01: plain gradient: tanh"),
        (answered([1.0, 3.0], warning=whence.WhenceWarning("read elsewhere")), "noted", "scores 5e-01: read elsewhere"),
        (answered([1.0, 3.0], warning=UserWarning("of torch")), "SILENT", "scores 5e-01"),
        (answered([], error=whence.WhenceError("no attention")), "refused", "WhenceError: no attention"),
        (answered([], error=TypeError("an int\nand more")), "CRASH", "TypeError: an int"),
    ],
)
def test_an_outcome_is_reported_as_what_it_is(other, kind, said):
    assert outcome(answered([1.0, 2.0], ["exp"]), other) == Outcome(kind, said)
    assert Outcome(kind).failed == (kind in ("SILENT", "CRASH"))


def test_what_the_usual_spelling_refuses_is_not_compared():
    refused = Answer(refused="InputError: ids")
    assert outcome(refused, answered([1.0])) == Outcome("inapplicable", "InputError: ids")
    assert outcome(refused, Answer(crashed="TypeError: x")).kind == "CRASH"
    assert outcome(Answer(crashed="TypeError: x"), answered([1.0])).kind == "CRASH"


def test_an_explanation_that_does_not_end_is_a_crash(monkeypatch):
    monkeypatch.setattr(compare, "LONGEST", 0.05)
    slow = answer(None, torch.zeros(1, 2), "attn-lrp", lambda *args, **options: time.sleep(2))
    assert slow.crashed == "SlowError: no answer within 0.05 s"
    assert not slow.refused


def test_patches_that_are_missing_or_moved_are_reported():
    s, p = torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 2.0]]])
    usual = Answer({"scores": s, "patches": p})
    assert outcome(usual, Answer({"scores": s})) == Outcome("refused", "no patches")
    assert outcome(usual, Answer({"scores": s, "patches": p.flip(-1)})) == Outcome("SILENT", "patches 5e-01")


def test_patches_are_read_from_images_only():
    explain = lambda model, given, **options: explanation([1.0, 2.0], patches=torch.ones(1, 1, 2))  # noqa: E731
    assert answer(None, torch.zeros(1, 3, 2, 4), "attn-lrp", explain).scores.keys() == {"scores", "patches"}
    assert answer(None, torch.zeros(1, 2), "attn-lrp", explain).scores.keys() == {"scores"}


def test_a_failing_composition_is_printed_once_in_its_smallest_form(monkeypatch, capsys):
    """Whatever contains a clone fails here."""

    def fails(case, methods):
        bad = ("residual", "sum", "clone") in case.entries
        return {m: Outcome("SILENT", "scores 1e+00") if bad else Outcome("equal") for m in methods}

    monkeypatch.setattr(tool, "compared", fails)
    report = tool.Report()
    case = case_of("norm/rms/divide-pow+residual/sum/clone+pool/mean/sum+blocks/3+weights/2")
    for _ in range(2):
        report.add(case, fails(case, ["rollout"]), composed=True)
    said = capsys.readouterr().out
    assert said == (
        "residual/sum/clone: SILENT rollout (scores 1e+00)"
        "  [python -m tools.spellings --only residual/sum/clone --methods rollout]\n"
    )
    assert report.failed
    assert report.total == {"SILENT": 2}


def test_the_command_line_takes_names_slots_and_methods(capsys):
    assert tool.main(["--only", "position/sum/commuted", "--methods", "rollout,gradient-x-input"]) == 0
    assert "2 comparisons" in capsys.readouterr().out
    assert tool.main(["--list"]) == 0
    assert "norm/layer/divide-pow" in capsys.readouterr().out
    assert len(tool.selected("patches")) == len(SLOTS["patches"]["grid"]) - 1
    with pytest.raises(SystemExit, match="No method or group is named nonsense"):
        tool.main(["--methods", "nonsense"])


def test_inputs_are_those_of_the_case():
    assert inputs(Case()).shape == (2, 9)
    assert inputs(Case(reads="image")).shape == (2, 3, 6, 8)
