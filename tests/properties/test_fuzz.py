"""Fuzzing in small: a seeded part of what ``make fuzz`` tries, and the plainest form of all that it has found."""

from __future__ import annotations

import json
import random
import shlex

import pytest
import torch

import whence
from tools.fuzz import properties
from tools.fuzz.captured import SAME, tried_captured
from tools.fuzz.case import Case, case_of, draw_case, joined
from tools.fuzz.grammar import CHOICES, Architecture, drawn, settled
from tools.fuzz.properties import Outcome, tried
from tools.fuzz.run import main, reason, run
from tools.fuzz.shrink import shrunk, simpler, weight
from whence.explainer.captured import Capture

#: what fuzzing has found, and how it was mended: docs/fuzzing.md
FOUND: dict[str, str] = {
    "a padding mask beside a class token": "method=kernel-shap padding=right pool=class",
    "a padding mask beside registers": "method=random padding=right registers=2",
    "a padding mask of an encoder": "method=kernel-shap padding=right streams=encoder-decoder pool=class causal=True",
    "words beside a picture": "method=occlusion options={'at':'token'} padding=right streams=two pool=class",
    "noise for tokens that stand behind padding": "method=smooth-grad padding=left",
    "a position that is given or counted": "method=bi-attention padding=right reads=floats places=learned",
    "a stabiliser where a tensor is read twice": "method=lrp options={'eps':0.001}",
    "blocks inside windows": "method=rollout window=2 windowed=block pool=mean",
    "the books of two streams": "method=transformer-attribution streams=two",
    "a stabiliser in half precision": "method=attn-lrp options={'gamma':0.25} dtype=bfloat16",
    "the stabiliser of the first block": "method=lrp options={'at':'token'}",
    "rotated queries that are scaled": "method=pa-lrp attend=einsum heads=1 rotary=pairs weights=8",
}


#: of these, what is said instead of a wrong answer
REFUSED = {"blocks inside windows": "The model cuts its tokens into 2 windows"}


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_stays_mended(found):
    outcome = tried(case_of(FOUND[found].split()))
    if found in REFUSED:
        assert outcome.kind == "refused"
        assert outcome.said.startswith(REFUSED[found])
    else:
        assert outcome == Outcome("passed")


@pytest.mark.parametrize("first", range(0, 156, 26))
def test_every_property_holds_of_random_architectures(first):
    """Every method in turns; a failure prints the command that repeats it."""
    report = run(range(first, first + 26), seed=11)
    assert not report.failures, report.table()
    assert report.passed > 13


def test_a_case_is_the_same_from_its_number_and_from_its_words():
    for index in range(60):
        case = draw_case(3, index)
        assert case == draw_case(3, index)
        again = case_of(shlex.split(case.words()))
        assert again == case
        assert all(torch.equal(a, b) for a, b in zip(case.inputs().values(), again.inputs().values(), strict=True))
    assert draw_case(3, 0) != draw_case(4, 0)


def test_every_method_and_every_choice_is_drawn():
    cases = [draw_case(0, index) for index in range(1000)]
    assert {case.method for case in cases} == set(whence.list_methods())
    for feature, choices in CHOICES.items():
        if feature != "weights":
            assert {getattr(case.architecture, feature) for case in cases} == set(choices)


def test_what_is_put_together_stays_as_it_is():
    for seed in range(200):
        a = drawn(random.Random(seed))
        assert settled(a) == a
        assert joined(Case(a)) == joined(joined(Case(a)))


def test_attentions_written_in_five_ways_are_the_same_function():
    """Without this the property that they are explained alike would say nothing."""
    for index in range(80):
        case = draw_case(5, index)
        if case.architecture.attend not in ("fused", "matmul") or case.architecture.masking == "flag":
            continue
        case = case_of([*shlex.split(case.words()), "dtype=float64", "answers=tensor"])
        plain = case.model()(**case.inputs())
        for attend in ("matmul", "einsum", "bmm"):
            torch.testing.assert_close(case.model(attend=attend)(**case.inputs()), plain, rtol=1e-9, atol=1e-9)


class Lossy:
    """An explain whose scores go wrong in some way."""

    def __init__(self, change) -> None:
        self.explain, self.change = whence.explain, change

    def __call__(self, model, inputs, *args, **kwargs):
        e = self.explain(model, inputs, *args, **kwargs)
        self.change(e, model, inputs)
        return e


def mixed(e, model, inputs):
    for scores in e.streams.values():
        scores += scores.mean(0, keepdim=True)


def endless(e, model, inputs):
    next(iter(e.streams.values())).fill_(float("nan"))


def marked(e, model, inputs):
    model.seen = True


def drawn_anew(e, model, inputs):
    for scores in e.streams.values():
        scores += torch.randn(scores.shape)


def shouted(e, model, inputs):
    e.logits.mul_(1.001)


def unbalanced(e, model, inputs):
    e.ledger.sums[:, 0] += 1


def at_padding(e, model, inputs):
    for scores in e.streams.values():
        scores += 1


@pytest.mark.parametrize(("change", "name", "words"), [
    (mixed, "batch", ""), (endless, "finite", ""), (marked, "untouched", ""), (drawn_anew, "untouched", ""),
    (shouted, "forward", ""), (unbalanced, "books", ""), (at_padding, "padding", "padding=right"),
])  # fmt: skip
def test_each_property_can_fail(monkeypatch, change, name, words):
    monkeypatch.setattr(properties.whence, "explain", Lossy(change))
    outcome = tried(case_of(words.split()))
    assert (outcome.kind, outcome.name) == ("failed", name)


@pytest.mark.parametrize(("error", "kind"), [
    (whence.ModelError("It cannot."), "refused"), (IndexError("list index"), "failed"), (AssertionError(), "failed"),
])  # fmt: skip
def test_a_sentence_is_a_refusal_and_anything_else_a_failure(monkeypatch, error, kind):
    def explain(*_, **__):
        raise error

    monkeypatch.setattr(properties.whence, "explain", explain)
    assert tried(Case()).kind == kind


def test_a_failure_is_shrunk_to_what_matters(monkeypatch):
    def explain(model, inputs, *args, **kwargs):
        if model.a.norm == "post" and model.a.heads > 1:
            raise KeyError("no such head")
        raise whence.ModelError("It cannot.")

    monkeypatch.setattr(properties.whence, "explain", explain)
    case = next(case for index in range(200) if tried(case := draw_case(0, index)).kind == "failed" and not case.breaks)
    small = shrunk(case, "raised KeyError")
    assert small.words() == f"method={case.method} norm=post"
    assert weight(small) < weight(case)
    assert all(weight(plainer) < weight(case) for plainer in simpler(case))


def test_a_failure_prints_the_command_that_repeats_it(monkeypatch, capsys, tmp_path):
    def explain(*_, **__):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(properties.whence, "explain", explain)
    assert main(["--cases", "2", "--seed", "7", "--out", str(tmp_path / "report.json")]) == 1
    said = capsys.readouterr().out
    assert "2 cases of seed 7" in said
    command = next(line for line in said.splitlines() if line.startswith("  python -m tools.fuzz --case"))
    assert main(shlex.split(command)[3:]) == 1
    assert "raised ZeroDivisionError: by zero" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "report.json").read_text())["failures"]) == 2


def test_refusals_are_counted_by_reason():
    one, other = (f"The model's attentions are {shape}, which '{m}' does not roll up. Use another." for shape, m in
                  (("[(3, 3), (3, 4)]", "legrad"), ("[(5, 5)]", "token-tm")))  # fmt: skip
    assert reason(one) == reason(other) == "The model's attentions are …, which … does not roll up."


def test_the_plainest_architecture_has_no_words():
    assert Case().words() == "method=conservative-lrp"
    assert Case().architecture == Architecture()


def test_captured_explanations_are_those_that_are_computed():
    """Every method in turns: captured for one input, replayed for another of the same shapes."""
    report = run(range(26), seed=5, only="captured")
    assert not report.failures, report.table()
    assert len(report.named[SAME]) > 8


def test_a_replay_that_differs_is_found(monkeypatch):
    usual = Capture.replay

    def slightly(self, inputs):
        found = usual(self, inputs)
        for one in found:
            one.explanation.scores.mul_(1.01)
        return found

    monkeypatch.setattr(Capture, "replay", slightly)
    outcome = tried_captured(case_of(["method=attn-lrp"]))
    assert (outcome.kind, outcome.name) == ("failed", "replayed")
    assert "differ by 1.0e-02" in outcome.said
