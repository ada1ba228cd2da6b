"""Counterfactuals: they really flip, no part of them does, and what was tried is told."""

from __future__ import annotations

import functools
import gzip
import json
import math
import os
import random
import re
from itertools import chain, combinations, pairwise, product

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM

import whence
from tests.support import tiny
from tests.support.command_line import command_refused, run
from tests.support.goldens import shared
from tests.support.modalities import KINDS
from tests.support.processors import WORDS, bert, bytes_bpe, small
from whence.counterfactuals import save
from whence.counterfactuals.budgeted_inference import BudgetedInference
from whence.counterfactuals.counterfactual import counterfactual
from whence.counterfactuals.edits import Change, texts
from whence.counterfactuals.flip_criterion import FlipCriterion
from whence.counterfactuals.mlm_proposals import WordProposer
from whence.counterfactuals.rewriting import rewritten
from whence.counterfactuals.search import Search, growing, likeliest
from whence.inputs.sample import Sample
from whence.models import MODELS
from whence.results.input_origin import TextOrigin
from whence.results.word_segmentation import Word

TEXTS = (MODELS / "sentiment" / "examples.txt").read_text(encoding="utf-8").splitlines()
PICTURES = sorted((MODELS / "digits" / "examples").glob("*.png"))
NEGATIVE, POSITIVE = 0, 1
MASKED = whence.Explainer(bert(WORDS, BertForMaskedLM), processor=WORDS)


@functools.cache
def sentiment():
    loaded = whence.Explainer.from_pretrained(MODELS / "sentiment")
    return whence.Explainer(loaded.model, loaded.processor, capture=False)  # a capture runs the model once more


@functools.cache
def digits():
    return whence.Explainer.from_pretrained(MODELS / "digits")


@functools.cache
def plain_sentiment():
    """The model and its tokenizer without Whence."""
    directory = MODELS / "sentiment"
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(directory)


@functools.cache
def without(text):
    """What is found of a text as it is, once for all tests."""
    return counterfactual(sentiment(), text)


@functools.cache
def likely_filler():
    return filler(LIKELY)


@torch.no_grad()
def judged(text):
    """What the plain model says of a text, or of a pair."""
    model, tokenizer = plain_sentiment()
    return int(model(**tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")).logits.argmax())


@torch.no_grad()
def all_judged(texts):
    """What the plain model says of each of many texts, or of pairs."""
    model, tokenizer = plain_sentiment()
    out = set()
    for start in range(0, len(texts), 64):
        some = texts[start : start + 64]
        firsts = [text if isinstance(text, str) else text[0] for text in some]
        seconds = None if isinstance(some[0], str) else [text[1] for text in some]
        out |= set(model(**tokenizer(firsts, seconds, padding=True, return_tensors="pt")).logits.argmax(1).tolist())
    return out


@torch.no_grad()
def logits(model, tensors):
    """The plain model's answer to tensors."""
    return model(**tensors).logits[0]


def parts(changes):
    """Proper subsets, but not the empty one."""
    return chain.from_iterable(combinations(changes, n) for n in range(1, len(changes)))


def deleted(texts, words):
    """Texts without some words, cut by hand: only tokens count here, and spaces make none."""
    out = list(texts)
    for word in sorted(words, key=lambda w: -w.start):
        out[word.part] = f"{out[word.part][: word.start]} {out[word.part][word.end :]}"
    return out[0] if len(out) == 1 else tuple(out)


# -- it flips, and no part of it does --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_deleting_the_words_flips_the_plain_model_and_deleting_fewer_does_not(text):
    c = without(text)
    said = judged(text)
    assert c.before.index == said
    if not c.found:
        assert c.runs == c.budget
        assert judged(c.changed) == said
        return
    assert judged(c.changed) == c.after.index != said
    assert c.minimal
    words = [change.unit for change in c.changes]
    assert all(text[w.start : w.end] == w.text for w in words)
    assert judged(deleted([text], words)) != said
    assert len(words) <= 10
    assert all_judged([deleted([text], some) for some in parts(words)]) <= {said}


def test_smallest_means_that_no_fewer_words_do_it_whichever_they_are():
    proved = 0
    for text in TEXTS:
        c = without(text)
        if c.found and len(c.changes) > 1 and c.smallest:
            proved += 1
            every = c.explanation.words[0]
            assert len(every) == c.candidates
            fewer = chain.from_iterable(combinations(every, size) for size in range(1, len(c.changes)))
            left = [deleted([text], some) for some in fewer]
            assert all_judged([some for some in left if some.strip()]) == {c.before.index}
    assert proved >= 4


@pytest.mark.parametrize(("name", "remove"), [("0-6", "blur"), ("1-8", "blur"), ("3-6", "mean"), ("5-7", "zero")])
def test_painting_the_patches_over_flips_the_plain_model_and_fewer_do_not(name, remove):
    explainer, path = digits(), MODELS / "digits" / "examples" / f"{name}.png"
    c = counterfactual(explainer, path, remove=remove)
    assert c.found
    assert c.minimal

    def positive(*pictures):
        """In which pictures the plain model sees the digit."""
        pixels = explainer.processor(images=list(map(Image.fromarray, pictures)), return_tensors="pt")
        with torch.no_grad():
            return explainer.model(**pixels).logits[:, c.before.index] > 0

    given = np.asarray(Image.open(path).convert("RGB"))
    assert positive(given)
    assert not positive(c.changed)
    assert c.after.name == f"not {c.before.name}"
    boxes = [change.unit.box for change in c.changes]
    inside = np.zeros(given.shape[:2], bool)
    for left, top, right, bottom in boxes:
        inside[top:bottom, left:right] = True
    assert (c.changed[~inside] == given[~inside]).all()
    assert len(boxes) <= 10
    pictures = [given]
    for some in parts(boxes):
        picture = given.copy()
        for left, top, right, bottom in some:
            picture[top:bottom, left:right] = c.changed[top:bottom, left:right]
        pictures.append(picture)
    for start in range(0, len(pictures), 64):
        assert positive(*pictures[start : start + 64]).all()


@pytest.mark.parametrize("remove", ["unk", "mask", "pad", "hide"])
@pytest.mark.parametrize("text", [TEXTS[2], TEXTS[9]])
def test_covering_the_tokens_flips_the_plain_model_and_covering_fewer_does_not(text, remove):
    explainer = sentiment()
    c = counterfactual(explainer, text, remove=remove)
    assert c.found
    assert c.minimal
    given = explainer.read(text)
    spans = given.origins["text"].spans
    stands = {"unk": 1, "mask": 4, "pad": 0}
    assert [explainer.processor.convert_tokens_to_ids(f"[{n.upper()}]") for n in stands] == list(stands.values())

    def said(words):
        tensors = {name: t.clone() for name, t in given.tensors.items()}
        at = [i for i, s in enumerate(spans) if s and any(w.start <= s.start < w.end for w in words)]
        name = "attention_mask" if remove == "hide" else "input_ids"
        tensors[name][0, at] = stands.get(remove, 0)
        return int(logits(explainer.model, tensors).argmax()), tensors

    words = [change.unit for change in c.changes]
    flipped, tensors = said(words)
    assert flipped == c.after.index != c.before.index
    assert all(torch.equal(tensors[name], c.tensors[name]) for name in tensors)
    for some in parts(words):
        assert said(some)[0] == c.before.index


def test_a_covered_text_reads_as_it_was_covered():
    explainer = sentiment()
    c = counterfactual(explainer, "An UNFLINCHINGLY bleak café.", remove="mask")
    assert c.found
    assert "[MASK]" in c.changed
    assert explainer.read(c.changed).tensors["input_ids"].tolist() == c.tensors["input_ids"].tolist()


def test_pairs_of_texts():
    pair = ("A warm, funny film.", "But the end is dull, and the music worse.")
    c = counterfactual(sentiment(), pair)
    assert c.found
    assert judged(pair) == c.before.index
    assert judged(c.changed) == c.after.index != c.before.index
    for some in parts([change.unit for change in c.changes]):
        assert judged(deleted(pair, some)) == c.before.index
    assert all(pair[change.unit.part][change.unit.start : change.unit.end] == change.unit.text for change in c.changes)


@pytest.mark.parametrize(("kind", "noun", "candidates"), [("vilt", "words or patches", 4 + 9), ("lxmert", "words", 4)])
def test_a_picture_and_its_text(kind, noun, candidates):
    make, given, _, _ = KINDS[kind]  # the vocabulary is another in each process, and with it the answer
    explainer = make()
    c = counterfactual(explainer, given, budget=100)
    assert (c.noun, c.candidates) == (noun, candidates)
    assert set(c.changed) == set(given)
    again = explainer.read(c.changed).tensors
    said = int(logits_of_any(explainer.model, again).argmax())
    assert said == c.after.index
    assert (said != c.before.index) == c.found
    assert all(torch.equal(c.tensors[name], t) for name, t in again.items())


@torch.no_grad()
def logits_of_any(model, tensors):
    out = model(**tensors)
    return (out.logits if hasattr(out, "logits") else out.question_answering_score)[0]


def test_tensors():
    explainer = digits()
    given = explainer.read(PICTURES[0]).tensors
    c = counterfactual(explainer, given, remove="mean")
    assert c.found
    assert logits(explainer.model, c.tensors)[c.before.index] < 0 < logits(explainer.model, given)[c.before.index]
    changed = (c.tensors["pixel_values"] != given["pixel_values"]).any(1)[0]
    cells = {(int(y) // 8, int(x) // 8) for y, x in changed.nonzero()}
    assert cells == {(change.unit.row, change.unit.column) for change in c.changes}
    tokens = {"input_ids": tiny.ids(1), "attention_mask": torch.ones(1, 7, dtype=torch.long)}
    hidden = counterfactual(whence.Explainer(tiny.bert()), tokens, remove="hide")
    assert hidden.found
    out = hidden.tensors["attention_mask"][0] == 0
    assert out.nonzero()[:, 0].tolist() == sorted(change.unit.position for change in hidden.changes)
    assert int(logits(tiny.bert(), hidden.tensors).argmax()) == hidden.after.index != hidden.before.index


def test_the_gap_that_a_model_fills_in_is_left():
    text = "a [MASK] film is bad and good"
    c = counterfactual(MASKED, text)
    assert "[MASK]" in c.changed
    assert c.candidates == counterfactual(MASKED, text, remove="hide").candidates == 6
    at = c.tensors["input_ids"][0].tolist().index(MASKED.processor.mask_token_id)
    with torch.no_grad():
        token = int(MASKED.model(**c.tensors).logits[0, at].argmax())
    assert MASKED.processor.decode([token]) == c.after.name
    assert (c.after.name != c.before.name) == c.found


def test_real_models_and_real_sentences():
    directory = shared("weights", "minilm_l6_sst2")
    with gzip.open(shared("data", "sst2", "dev.tsv.gz"), "rt") as file:
        sentences = [line.split("\t")[0] for line in file.read().splitlines()[1:] if len(line.split()) < 12]
    explainer = whence.Explainer.from_pretrained(directory)

    def said(text):
        return int(logits(explainer.model, explainer.processor(text, return_tensors="pt")).argmax())

    for text, budget in zip(sentences, [40, 300, 40], strict=False):
        c = counterfactual(explainer, text, budget=budget)
        assert c.runs <= budget
        assert (said(c.changed) != said(text)) == c.found
        for some in parts([change.unit for change in c.changes]) if c.minimal else ():
            assert said(deleted([text], some)) == c.before.index


def test_a_real_photograph():
    directory, photographs = shared("weights", "vit_tiny_patch16_224_hf"), shared("data", "pets_seg")
    explainer = whence.Explainer.from_pretrained(directory)
    path = next(photographs.rglob("beagle_54.jpg"))
    c = counterfactual(explainer, path, budget=40)
    assert c.found
    pixels = explainer.processor(images=Image.fromarray(c.changed), return_tensors="pt")
    assert int(logits(explainer.model, pixels).argmax()) == c.after.index != c.before.index
    assert explainer(path).prediction.tolist() == [c.before.index]


# -- what is asked for -----------------------------------------------------------------------------------------------


def test_a_target_is_the_class_that_comes_out():
    explainer = KINDS["vit"][0]()
    given = KINDS["vit"][1]
    before = explainer(given).prediction.item()
    found = 0
    for target in {0, 1, 2} - {before}:
        c = counterfactual(explainer, given, target=target)
        found += c.found
        assert (int(logits(explainer.model, c.tensors).argmax()) == target) == c.found
        assert c.watched == f"LABEL_{target}"
        assert c.after.watched > c.before.watched
    assert found
    with pytest.raises(whence.TargetError, match="already"):
        counterfactual(explainer, given, target=before)


def test_a_target_by_its_name():
    c = counterfactual(sentiment(), TEXTS[0], target="positive")
    assert (c.before.name, c.after.name, c.watched) == ("negative", "positive", "positive")
    with pytest.raises(whence.TargetError, match="Did you mean 'positive'"):
        counterfactual(sentiment(), TEXTS[0], target="positiv")
    with pytest.raises(whence.TargetError, match="class number or a label"):
        counterfactual(sentiment(), TEXTS[0], target=whence.contrast(0, 1))


def test_each_class_of_a_multi_label_model_has_an_answer_of_its_own():
    explainer = digits()
    both = explainer(PICTURES[0]).logits[0].topk(2).indices.tolist()
    assert explainer(PICTURES[0]).prediction_names == ("digit 0, digit 6",)
    places = []
    for digit in both:
        c = counterfactual(explainer, PICTURES[0], target=digit, remove="zero")
        assert (c.before.name, c.after.name) == (f"digit {digit}", f"not digit {digit}")
        other = logits(explainer.model, c.tensors)
        assert other[digit] < 0 < other[both[1 - both.index(digit)]]  # the other digit is still seen
        places.append({(change.unit.row, change.unit.column) for change in c.changes})
    assert not places[0] & places[1]


def test_a_no_of_a_multi_label_model_becomes_a_yes():
    explainer = whence.Explainer(tiny.vit(problem_type="multi_label_classification"), KINDS["vit"][0]().processor)
    given = KINDS["vit"][1]
    no = explainer(given).logits[0].argmin().item()
    assert explainer(given).logits[0, no] < 0
    c = counterfactual(explainer, given, target=no)
    assert c.before.name == f"not LABEL_{no}"
    assert c.found
    assert c.after.name == f"LABEL_{no}"
    assert logits(explainer.model, c.tensors)[no] > 0
    first = counterfactual(explainer, given, target=no, budget=1)  # what speaks most against it goes first
    assert first.changes[0].unit.score == explainer(given, target=no).patches.min()


def test_what_has_no_class_or_is_not_one_is_refused():
    for kind, said in (("clip", "a value, not a class"), ("wav2vec", "words of a text or the patches")):
        with pytest.raises(whence.InputError, match=said):
            counterfactual(KINDS[kind][0](), KINDS[kind][1])
    for labels in (1, 3):
        model = tiny.bert(problem_type="regression")
        model.classifier = torch.nn.Linear(32, labels)
        model.config.num_labels = labels
        with pytest.raises(whence.InputError, match="a value, not a class"):
            counterfactual(whence.Explainer(model), {"input_ids": tiny.ids(1)})
    with pytest.raises(whence.InputError, match="one by one"):
        counterfactual(sentiment(), TEXTS)
    with pytest.raises(whence.InputError, match="empty"):
        counterfactual(sentiment(), " ")


@pytest.mark.parametrize(("options", "said"), [
    ({"remove": "blur"}, "is for pictures"), ({"remove": "burn"}, "choose delete"), ({"budget": 0}, "at least 1"),
    ({"batch_size": 0}, "at least 1"), ({"remove": "mask", "replace": "x"}, "not both"),
    ({"budget": "9"}, "budget must be a whole number, at least 1, not '9'"), ({"batch_size": 2.5}, "whole number"),
])  # fmt: skip
def test_a_wrong_call_is_told_what_is_wrong(options, said):
    with pytest.raises(whence.InputError, match=said):
        counterfactual(sentiment(), TEXTS[0], **options)


def test_pictures_are_not_deleted_and_have_no_words():
    with pytest.raises(whence.InputError, match="is for texts"):
        counterfactual(digits(), PICTURES[0], remove="delete")
    with pytest.raises(whence.InputError, match="this input is none"):
        counterfactual(digits(), PICTURES[0], replace=filler({}))
    with pytest.raises(whence.InputError, match="of pixels"):
        counterfactual(digits(), PICTURES[0], "gradient-x-input", at="pixel")


# -- the budget ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "budget"), [(TEXTS[2], 1), (TEXTS[8], 2), (TEXTS[2], 7), (TEXTS[8], 60)])
def test_the_model_never_reads_more_than_the_budget(text, budget, monkeypatch):
    explainer = sentiment()
    before = explainer.model.forward
    rows = []

    def counted(*args, **kwargs):
        rows.append(len(kwargs["input_ids"]))
        return before(*args, **kwargs)

    monkeypatch.setattr(explainer.model, "forward", counted)
    c = counterfactual(explainer, text, budget=budget, batch_size=8)
    assert sum(rows) - 1 == c.runs <= budget  # one is the explanation's


def test_what_was_tried_in_vain_is_told():
    c = counterfactual(sentiment(), TEXTS[8], budget=30)
    assert not c.found
    assert not c.minimal
    assert c.runs == 30
    assert judged(c.changed) == c.before.index == c.after.index
    assert c.after.watched < c.before.watched
    printed = str(c)
    assert "does not flip" in printed
    assert "30 of 30 inputs tried: in the order of relevance (" in printed
    assert f"from {c.before.watched:.1%} to {c.after.watched:.1%}" in printed
    assert without(TEXTS[8]).after.watched <= c.after.watched


def test_when_every_set_was_tried_that_is_said():
    every = counterfactual(sentiment(), "charming and affecting")
    assert not every.found
    assert every.smallest
    assert every.runs == 2**3 - 2  # a text of nothing is none
    assert "all sets were tried" in str(every)


def test_a_text_of_one_word_has_nothing_to_lose():
    c = counterfactual(sentiment(), "superb")
    assert not c.found
    assert c.changes == ()
    assert c.changed is None
    assert c.runs == 0
    assert "none of 1 words can be changed" in str(c)
    json.dumps(c.record())


# -- texts that are longer than the model takes ----------------------------------------------------------------------

UNREAD = ["tedious", "boring", "stale", "mess"]


@pytest.fixture
def watched(monkeypatch):
    """The sentiment model, and the tokens of all that it was given."""
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    forward, given = explainer.model.forward, []

    def kept(*args, **kwargs):
        given.extend(explainer.processor.batch_decode(kwargs["input_ids"], skip_special_tokens=True))
        return forward(*args, **kwargs)

    monkeypatch.setattr(explainer.model, "forward", kept)
    return explainer, given


def test_a_long_text_is_cut_with_one_warning():
    text = "A warm and funny film. " * 40
    with pytest.warns(whence.WhenceWarning, match="the rest was not read") as said:
        c = counterfactual(sentiment(), text, budget=20)
    assert len(said) == 1
    assert c.candidates < 200


@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
@pytest.mark.parametrize("how", ["delete", "mask", "replace"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_what_was_not_read_never_comes_in(watched, side, how):
    explainer, given = watched
    explainer.processor.truncation_side = side
    many, few = "It is a warm film . " * 40, " , ".join(UNREAD)
    text = f"{many}{few} ." if side == "right" else f"{few} . {many}"
    changed = {"replace": likely_filler()} if how == "replace" else {"remove": how}
    c = counterfactual(explainer, text, budget=40, **changed)
    assert len(given) >= c.runs > 10
    assert not any(word in read for read in given for word in UNREAD)
    assert not any(word in c.changed for word in UNREAD)
    again = explainer.read(c.changed)
    assert again.origins["text"].unread == ()
    assert again.tensors["input_ids"].tolist() == c.tensors["input_ids"].tolist()
    assert all(text[change.unit.start : change.unit.end] == change.unit.text for change in c.changes)
    assert not any(word in "".join(re.findall("<del>.*?</p>", c._repr_html_())) for word in UNREAD)


@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
def test_what_was_not_read_of_a_pair_never_comes_in(watched):
    explainer, given = watched
    first, second = "It is a warm film . " * 40 + "tedious", "We saw it twice . " * 40 + "stale"
    c = counterfactual(explainer, (first, second), budget=20)
    assert c.runs > 10
    assert not any(word in read for read in given for word in UNREAD)
    assert isinstance(c.changed, tuple)
    assert explainer.read(c.changed).origins["text"].unread == ()


@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
@pytest.mark.parametrize("text", ["unflinchingly bleak " * 60, "café 😀 was unflinchingly bleak . " * 30])
def test_a_text_that_is_cut_inside_a_word_reads_as_it_was_read(text):
    sample = sentiment().read(text)
    (unread,) = sample.origins["text"].unread
    left = texts(sample.origins["text"], [])
    assert left == text[: unread.start]
    assert sentiment().read(left).tensors["input_ids"].tolist() == sample.tensors["input_ids"].tolist()


# -- the search itself -----------------------------------------------------------------------------------------------


class Made:
    """An editor of nothing: the model is a function of which changes are made."""

    def __init__(self, places, likely=None):
        self.places = places
        self.elements = [Change(Word(str(i), 0.0, 0, 0)) for i in places]
        self.likely = likely or [0.0] * len(places)

    def changed(self, chosen):
        return sorted(chosen)

    def sample(self, chosen):
        flags = torch.zeros(1, len(self.places))
        flags[0, list(chosen)] = 1
        return None if chosen == frozenset({0, 1, 2, 3, 4, 5}) else Sample({"flags": flags}, {})


class Rule(torch.nn.Module):
    """Says class 1 where a function of the changes is true."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, flags):
        hit = [self.rule({int(i) for i in row.nonzero()}) for row in flags]
        return torch.tensor([[0.0, 1.0 if h else -1.0] for h in hit]) + 0 * self.weight


def searched(rule, places, relevance, budget=2000, likely=None):
    inference = BudgetedInference(whence.Explainer(Rule(rule)), Made(places, likely), FlipCriterion(0), budget, 8)
    Search(inference, relevance).run()
    assert inference.tried.total() <= budget
    return inference


def test_the_search_finds_the_smallest_set_wherever_it_hides():
    draw = random.Random(0)
    for _ in range(30):
        n, size = draw.randint(4, 9), draw.randint(1, 4)
        wanted = set(draw.sample(range(n), size))
        inference = searched(lambda s, w=wanted: w <= s, list(range(n)), [draw.random() for _ in range(n)])
        if wanted == {0, 1, 2, 3, 4, 5}:
            continue
        assert inference.best == frozenset(wanted)
        assert inference.minimal(inference.best)
        assert inference.smallest(len(inference.best))


def test_a_smaller_set_is_found_off_the_path_of_relevance():
    """Relevance leads to four changes of which none can be put back; two others would do."""

    def rule(s):
        return {0, 1, 2, 3} <= s or {6, 7} <= s

    inference = searched(rule, list(range(8)), [8.0, 7, 6, 5, 4, 3, 2, 1])
    assert inference.best == frozenset({6, 7})


def test_two_changes_are_given_up_for_another_one():
    inference = searched(
        lambda s: {0, 1, 2, 3} <= s or {2, 3, 9} <= s, list(range(12)), [12.0 - i for i in range(12)], budget=150
    )
    assert inference.best == frozenset({2, 3, 9})
    assert inference.tried["two for one"] > 0


def test_what_is_not_needed_is_put_back():
    wanted = set(range(0, 36, 3))
    inference = searched(wanted.issubset, list(range(40)), [40.0 - i for i in range(40)], budget=250)
    assert inference.best == frozenset(wanted)
    assert inference.irreducible(inference.best)


def test_flips_that_come_and_go_are_minimal_all_the_same():
    """A model of which not every larger set flips, too: putting back one by one is not enough."""

    def rule(s):
        return s == {0, 1, 2, 3} or s == {1, 3, 5, 6}

    inference = searched(rule, list(range(7)), [9.0, 8, 7, 6, 5, 4, 3])
    assert inference.best == frozenset({0, 1, 2, 3})
    assert inference.minimal(inference.best)

    def odd(s):
        return {0, 1, 2, 3, 4} == s or s == {0, 4}

    assert searched(odd, list(range(5)), [5.0, 4, 3, 2, 1]).best == frozenset({0, 4})


def test_minimal_is_not_said_where_subsets_were_not_tried():
    wanted = set(range(12))
    inference = searched(lambda s: wanted <= s, list(range(30)), [30.0 - i for i in range(30)], budget=300)
    assert inference.best == frozenset(wanted)
    assert inference.irreducible(inference.best)
    assert not inference.minimal(inference.best)
    assert not inference.smallest(12)
    short = searched(lambda s: wanted <= s, list(range(30)), [30.0 - i for i in range(30)], budget=15)
    assert not short.irreducible(short.best)


def test_what_is_said_to_be_certain_was_tried():
    relevance = [1.0, 3, 2, 9, 8, 4, 5, 7, 6, 0.5]
    said = set()
    for wanted, budget in product([{0, 1, 2}, {2, 8}, {0, 4, 5, 9}], range(1, 250, 12)):
        inference = searched(wanted.issubset, list(range(10)), relevance, budget)
        known, best = inference.known, inference.best
        if best is None:
            continue
        every = [frozenset(s) for n in range(1, len(best)) for s in combinations(range(10), n)]
        assert inference.irreducible(best) == all(best - {i} in known for i in best)
        assert inference.minimal(best) == all(s in known for s in every if s < best)
        assert inference.smallest(len(best)) == all(s in known for s in every)
        said.add((inference.irreducible(best), inference.minimal(best), inference.smallest(len(best))))
    assert said == {(False, False, False), (True, False, False), (True, True, False), (True, True, True)}


def test_of_one_place_one_change_is_made():
    seen = []

    def rule(s):
        seen.append(s)
        return {1, 5} <= s

    places = [0, 0, 0, 1, 1, 1, 2]
    inference = searched(rule, places, [3.0, 2.0, 1.0])
    assert inference.best == frozenset({1, 5})
    assert all(len({places[i] for i in s}) == len(s) for s in seen)
    assert inference.smallest(2)


def test_of_equal_sets_the_likelier_is_taken():
    likely = [-1.0, -9.0, -2.0, -3.0]
    inference = searched(lambda s: bool(s & {1, 2, 3}), [0, 0, 1, 1], [1.0, 2.0], likely=likely)
    assert inference.best == frozenset({2})


def test_sets_are_counted():
    places = [0, 0, 0, 1, 1, 2]
    inference = BudgetedInference(whence.Explainer(Rule(bool)), Made(places), FlipCriterion(0), 10, 8)
    for size in range(5):
        every = [s for s in combinations(range(6), size) if len({places[i] for i in s}) == size]
        assert inference.count(size) == len(every)


def test_sets_come_by_their_sums():
    values = sorted(np.random.default_rng(0).normal(size=9).tolist(), reverse=True)
    for size in (1, 3, 9):
        found = list(likeliest(values, size))
        assert sorted(found) == sorted(combinations(range(9), size))
        sums = [sum(values[i] for i in s) for s in found]
        assert all(a >= b - 1e-12 for a, b in pairwise(sums))
    assert list(likeliest(values, 10)) == []
    assert growing(0) == []
    assert growing(12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]


@pytest.mark.parametrize(("text", "size"), list(zip(TEXTS[:4], [1, 2, 5, 7], strict=True)))
def test_batches_change_nothing(text, size):
    one, many = without(text), counterfactual(sentiment(), text, batch_size=size)
    assert (one.changed, one.found, one.changes) == (many.changed, many.found, many.changes)


def test_answers_near_the_border_are_asked_for_alone():
    class Tipping(torch.nn.Module):
        """In a batch its roundings tip the answer."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.sizes = []

        def forward(self, flags):
            self.sizes.append(len(flags))
            tip = 1e-6 if len(flags) > 1 else -1e-6
            return torch.tensor([[0.0, tip]]).expand(len(flags), 2) + torch.tensor([1.0, 1.0]) + 0 * self.weight

    model = Tipping()
    inference = BudgetedInference(whence.Explainer(model), Made([0, 1, 2]), FlipCriterion(0), 6, 8)
    assert max(inference.margins([frozenset({i}) for i in range(3)], "")) < 0
    assert model.sizes == [3, 1, 1, 1]
    assert inference.remaining == 0


def test_margins_are_positive_where_the_answer_flips():
    rows = np.array([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]])
    assert FlipCriterion(0).margins(rows).tolist() == [-1.0, 2.0, 2.0]
    assert FlipCriterion(0, 2).margins(rows).tolist() == [-1.0, -1.0, 1.0]
    assert FlipCriterion(0, multi_label=True).margins(rows - 2).tolist() == [-1.0, 1.0, 1.0]
    assert FlipCriterion(0, multi_label=True, positive=False).margins(rows - 2).tolist() == [1.0, -1.0, -1.0]
    assert np.allclose(FlipCriterion(0).probabilities(rows).sum(1), 1)
    assert math.isclose(FlipCriterion(0, multi_label=True).probabilities(rows)[0, 1], 1 / (1 + math.exp(-1)))


# -- words taken out, words put in -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "words", "left"), [
    ("It is superb, really.", ["superb"], "It is, really."),
    ("It is superb, really.", [","], "It is superb really."),
    ("It is superb, really.", ["It", "superb"], "is, really."),
    ("It is superb, really.", ["really", "."], "It is superb,"),
    ("It is superb, really.", ["superb", ",", "really"], "It is."),
    ("It is (very) good", ["very"], "It is () good"), ("It is (very) good", ["(", "very", ")"], "It is good"),
    ("so 👍good", ["👍"], "so good"), ("good👍film", ["👍"], "good👍film".replace("👍", "")),
    ("one.\n\nTwo is", ["Two"], "one.\n\nis"), ("one two\nthree", ["two"], "one\nthree"),
    ("  spaced   out  text ", ["out"], "  spaced   text "), ("一部好电影", ["好"], "一部电影"),
    ("don't go", ["don't"], "go"), ("all of it", ["all", "of", "it"], ""),
])  # fmt: skip
def test_what_is_left_is_spaced_as_it_should_be(text, words, left):
    at = [text.index(word) for word in words]
    spans = [(start, start + len(word), None) for start, word in zip(at, words, strict=True)]
    assert rewritten(text, spans) == left
    assert rewritten(text, reversed(spans)) == left


def test_words_are_exchanged_in_their_places():
    assert rewritten("a superb film", [(2, 8, "dull"), (9, 13, None)]) == "a dull"
    assert rewritten("a superb film", []) == "a superb film"


def filler(wanted, tokenizer=None):
    """A masked language model that finds some tokens likely everywhere."""
    tokenizer = tokenizer or plain_sentiment()[1]
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=128,
    )  # fmt: skip
    model = small(BertForMaskedLM, config)
    with torch.no_grad():
        for word, value in wanted.items():
            model.cls.predictions.bias[tokenizer.convert_tokens_to_ids(word)] = value
    return whence.Explainer(model, tokenizer)


LIKELY = {"##ing": 30, "[MASK]": 29, "[UNK]": 28, ",": 27, "the": 26, "superb": 25, "film": 24, "story": 23, "dull": 22,
          "great": 21, "awful": 20, "good": 19, "bad": 18}  # fmt: skip


def test_words_that_are_proposed_are_words_and_others():
    model = filler(LIKELY)
    text = "The acting is superb."
    origin = sentiment().read(text).origins["text"]
    assert isinstance(origin, TextOrigin)
    words = sentiment()(text).words[0]
    first, acting, superb = words[0], words[1], words[3]
    found = [[new for new, _ in each] for each in WordProposer(model).propose(origin, [first, acting, superb], 2)]
    assert found[0][:4] == ["Superb", "Film", "Story", "Dull"]  # not 'The' again, and in its capitals
    assert found[1][:4] == ["the", "superb", "film", "story"]
    assert found[2][:4] == ["the", "film", "story", "dull"]
    assert all(len(each) == 10 for each in found)
    logs = [log for _, log in WordProposer(model).propose(origin, [superb], 2)[0]]
    assert logs == sorted(logs, reverse=True)
    assert max(logs) < 0


def test_pieces_of_words_are_told_by_the_spaces_that_they_lack():
    tokenizer = bytes_bpe(mask_token=AddedToken("<mask>", lstrip=True), pad_token="<|endoftext|>")  # as RoBERTa's
    vocabulary = sorted(tokenizer.get_vocab())  # its own order is another one in every process
    whole = next(t for t in vocabulary if len(t) > 3 and t[0] == "Ġ" and t[1:].isalpha() and t != "Ġbad")
    piece = next(t for t in vocabulary if len(t) > 1 and t.isascii() and t.isalpha() and f"Ġ{t}" not in vocabulary)
    model = filler({piece: 30, whole: 29}, tokenizer)
    origin = model.read("a bad film").origins["text"]
    inside, first = WordProposer(model).propose(origin, [Word("bad", 0.0, 2, 5), Word("a", 0.0, 0, 1)], 1)
    assert inside[0][0] == whole[1:]
    assert piece not in dict(inside)
    assert first[0][0] == piece  # where a text begins, words have no space before them


@pytest.mark.parametrize("text", TEXTS[:4])
def test_exchanging_the_words_flips_the_plain_model_and_exchanging_fewer_does_not(text):
    c = counterfactual(sentiment(), text, replace=likely_filler())
    assert c.found
    assert judged(c.changed) == c.after.index != c.before.index == judged(text)
    assert c.minimal

    def exchanged(changes):
        out = text
        for unit, new in sorted(changes, key=lambda change: -change.unit.start):
            out = out[: unit.start] + new + out[unit.end :]
        return out

    assert exchanged(c.changes) == c.changed
    assert all_judged([exchanged(some) for some in parts(c.changes)]) <= {c.before.index}
    assert c.tried["proposing words"] > 0
    assert f"'{c.changes[0].new}' for '{c.changes[0].unit.text}'" in str(c)


def test_of_words_that_flip_the_likeliest_is_taken():
    text = "a sometimes tedious film ."
    plain = filler({"good": 40, "great": 39})
    other = filler({"good": 39, "great": 40})
    chosen = [counterfactual(sentiment(), text, replace=model) for model in (plain, other)]
    assert [len(c.changes) for c in chosen] == [1, 1]
    assert [c.changes[0].new for c in chosen] == ["good", "great"]


def test_the_budget_holds_for_the_masked_language_model_too(monkeypatch):
    model = filler(LIKELY)
    rows = []
    for explainer in (model, sentiment()):
        before = explainer.model.forward
        monkeypatch.setattr(
            explainer.model, "forward",
            lambda *a, forward=before, **k: rows.append(len(k["input_ids"])) or forward(*a, **k),
        )  # fmt: skip
    for budget in (1, 5, 50):
        rows.clear()
        c = counterfactual(sentiment(), TEXTS[8], replace=model, budget=budget)
        assert sum(rows) - 1 == c.runs <= budget


def test_a_model_that_fills_in_nothing_cannot_propose(tmp_path):
    with pytest.raises(whence.InputError, match="fills in no masked words"):
        counterfactual(sentiment(), TEXTS[0], replace=sentiment())
    with pytest.raises(whence.InputError, match="fills in no masked words"):
        counterfactual(sentiment(), TEXTS[0], replace=MODELS / "sentiment")


# -- shown and kept --------------------------------------------------------------------------------------------------


def test_it_is_printed_in_words():
    lines = str(without(TEXTS[0])).splitlines()
    assert lines[0].startswith("negative (")
    assert lines[0].endswith("without 1 of 11 words: 'nowhere'")
    assert lines[1] == "    The acting is superb, but the story goes."
    assert lines[2:] == ["no fewer words do it", "1 of 500 inputs tried: in the order of relevance (1)"]


def test_it_is_kept_as_json(tmp_path):
    text, picture = without(TEXTS[1]), counterfactual(digits(), PICTURES[0], budget=60)
    path = save([text, picture], tmp_path / "two.json")
    document = json.loads(path.read_text())
    assert (document["format"], document["version"]) == ("whence-counterfactuals", 1)
    first, second = document["counterfactuals"]
    assert first == json.loads(json.dumps(text.record()))
    for kept, change in zip(first["changes"], text.changes, strict=True):
        assert kept["kind"] == "word"
        assert TEXTS[1][kept["start"] : kept["end"]] == kept["text"] == change.unit.text
    assert judged(first["changed"]) == first["after"]["index"]
    assert set(second["changed"]) == {"png"}
    assert {change["kind"] for change in second["changes"]} == {"patch"}


def test_the_changed_picture_is_kept_as_it_is(tmp_path):
    c = counterfactual(digits(), PICTURES[0], budget=60)
    assert c.found
    path = c.save(tmp_path / "changed.png")
    assert (np.asarray(Image.open(path)) == c.changed).all()
    again = digits()(path)
    assert again.logits[0, c.before.index] < 0
    text = without(TEXTS[0])
    with pytest.raises(whence.InputError, match="changed picture of one"):
        text.save(tmp_path / "text.png")
    with pytest.raises(whence.InputError, match="endings"):
        text.save(tmp_path / "text.doc")
    assert text.save(tmp_path / "text.txt").read_text() == f"{text}\n"


def test_the_page_marks_what_is_changed(tmp_path):
    text = "<b>bad</b>, a sometimes tedious film ."
    page = counterfactual(sentiment(), text, replace=likely_filler()).save(tmp_path / "words.html").read_text()
    assert "<del>" in page
    assert "<ins>" in page
    assert "<b>bad" not in page
    c = without(TEXTS[1])
    assert all(f"<del>{change.unit.text.replace(chr(39), '&#x27;')}</del>" in c._repr_html_() for change in c.changes)
    picture = counterfactual(digits(), PICTURES[0], budget=60)
    assert picture._repr_html_().count('stroke="#d00"') == len(picture.changes)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_refuses(tmp_path):
    model = MODELS / "sentiment"
    printed = run("counterfactual", TEXTS[0], "--model", model).stdout
    assert printed == f"{without(TEXTS[0])}\n"
    words = ["counterfactual", TEXTS[1], "--model", model, "--remove", "mask", "--budget", "30", "--target", "positive",
             "--method", "gradient-x-input"]  # fmt: skip
    found = json.loads(run(*words, "--json").stdout)["counterfactuals"]
    same = counterfactual(sentiment(), TEXTS[1], "gradient-x-input", "positive", remove="mask", budget=30)
    assert found == json.loads(json.dumps([same.record()]))
    out = tmp_path / "otherwise.txt"
    assert str(out) in run(*words, "--out", out).stderr
    assert out.read_text(encoding="utf-8") == f"{same}\n"
    command_refused(2, "known endings", *words, "--out", tmp_path / "otherwise.doc")
    command_refused(1, "cannot be written", *words, "--out", tmp_path / "otherwise.txt" / "deeper.txt")
    command_refused(2, "choose delete", "counterfactual", TEXTS[0], "--model", model, "--remove", "burn")


def test_the_command_reads_pictures_pairs_and_masked_language_models(tmp_path):
    out = tmp_path / "changed.png"
    run("counterfactual", PICTURES[0], "--model", MODELS / "digits", "--remove", "zero", "--out", out)
    assert (np.asarray(Image.open(out)) == counterfactual(digits(), PICTURES[0], remove="zero").changed).all()
    printed = run("counterfactual", "A warm film.", "--text", "But dull.", "--model", MODELS / "sentiment").stdout
    assert printed == f"{counterfactual(sentiment(), ('A warm film.', 'But dull.'))}\n"
    model = filler(LIKELY)
    model.model.save_pretrained(tmp_path / "filler")
    model.processor.save_pretrained(tmp_path / "filler")
    words = ["counterfactual", TEXTS[0], "--model", MODELS / "sentiment", "--replace-with", tmp_path / "filler"]
    assert run(*words).stdout == f"{counterfactual(sentiment(), TEXTS[0], replace=tmp_path / 'filler')}\n"
    assert os.listdir(tmp_path / "filler")
