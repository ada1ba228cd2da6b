"""Swapped terms: a planted bias is found and none where there is none; counts, intervals, templates from real texts."""

from __future__ import annotations

import copy
import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import BertForMaskedLM, BertForSequenceClassification
from typer.testing import CliRunner

import whence
from tests.support import tiny
from tests.support.goldens import shared
from tests.support.processors import bert, bert_config, small, wordpiece
from tools.docgen.snippets import same
from whence.bias_probe.probe import ERROR, MEASURES, _read, interval, probe
from whence.bias_probe.templates import Template, templates_of
from whence.cli.probe import parse_terms
from whence.cli.probe import probe as command
from whence.datasets import Item
from whence.models import MODELS

scipy_stats = pytest.importorskip("scipy.stats")


TEMPLATES = [
    "{name} gave a moving performance.",
    "{name} is dull in this one.",
    "A film with {name} in it.",
    "I liked {name}'s last film.",
    "Why {name} took this part is a mystery.",
    "The story of {name} is told twice, and {name} knows it.",
    "Nobody but {name} could have saved the ending.",
    "It is {name} who is seen first.",
    "There is nothing to be said of {name}.",
    "{name} speaks in the last scene.",
]
NAMES = ["John", "Paul", "Robert", "David", "Michael", "Peter", "James", "Kevin", "Martin", "George", "Tom", "Daniel"]
DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def explainer():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


@pytest.fixture(scope="module")
def found(explainer):
    """Each name by itself, in the model as it is."""
    return probe(explainer, TEMPLATES, NAMES, target="positive")


def changed(explainer, change):
    """The same model with other word embeddings of names."""
    model = copy.deepcopy(explainer.model)
    ids = explainer.processor.get_vocab()
    with torch.no_grad():
        change(model.get_input_embeddings().weight, ids)
    return whence.Explainer(model, explainer.processor)


def indifferent(explainer):
    """A model to which all names are the same."""

    def change(weight, ids):
        for name in NAMES:
            weight[ids[name.lower()]] = weight[ids["john"]]

    return changed(explainer, change)


def biased(explainer, names):
    """A model to which all names are the same but some, which are a little better."""

    def change(weight, ids):
        for name in NAMES:
            weight[ids[name.lower()]] = weight[ids["john"]]
        for name in names:
            weight[ids[name.lower()]] = weight[ids["john"]] + 2 * (weight[ids["wonderful"]] - weight[ids["dull"]])

    return changed(explainer, change)


# -- templates -------------------------------------------------------------------------------------------------------

PART = st.text("ab {}'.,é\n", max_size=12)


@given(st.lists(PART, min_size=2, max_size=4), st.sampled_from(["Anna", "Mary Ann", "é"]))
def test_a_filled_text_has_the_term_where_it_says(parts, term):
    filled = Template(tuple(parts)).fill(term)
    assert filled.text == term.join(parts)
    assert [filled.text[a:b] for a, b in filled.places] == [term] * (len(parts) - 1)
    longer = Template(tuple(parts)).fill(term + "xyz")
    assert len(longer.others) == len(filled.others)  # the other words are the same ones
    assert [filled.text[k] for k in filled.others] == [longer.text[k] for k in longer.others]


@given(PART, PART, st.sampled_from(["Anna", "John"]), st.booleans())
def test_swapping_back_gives_the_original(before, after, name, small):
    name = name.lower() if small else name
    text = f"{before} {name} {after}"
    assume(small == (text == text.lower()))
    (template,) = templates_of([text], ["Anna", "John"], "{name}")
    assert template.fill(template.found).text == text
    other = template.fill("John" if template.found == "Anna" else "Anna")
    assert other.text != text
    assert Template.of(other.text, ["Anna", "John"], "{name}").fill(template.found).text == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Anna smiled.", ("", " smiled.")),
        ("Annas and JoAnna smiled, but not anna.", None),
        ("nobody but anna smiled.", ("nobody but ", " smiled.")),
        ("Anna saw John, and Anna smiled.", ("", " saw John, and ", " smiled.")),
        ("Anna's film", ("", "'s film")),
        ("Mary Ann came", ("", " came")),
        ("Mary is not Mary Ann", ("", " is not Mary Ann")),
        ("Anna\u0301 came", None),  # another letter
        ("no name at all", None),
    ],
)
def test_a_real_text_is_a_template_if_a_term_stands_in_it(text, parts):
    template = Template.of(text, ["Anna", "John", "Mary", "Mary Ann"], "{name}")
    assert (None if template is None else template.parts) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("小明喜欢电影", ("", "喜欢电影")),
        ("他说小明和小红来了。小明。", ("他说", "和小红来了。", "。")),
        ("小明明不是小明", ("", "不是小明")),  # the longer of two names that begin alike
        ("ชื่อสมชายครับ", ("ชื่อ", "ครับ")),
        ("ชื่อสมชายี", None),  # a vowel sign belongs to the character before it
        ("私はAnnaです", ("私は", "です")),
        ("私はAnnasです", None),
        ("Anna小明", ("", "小明")),
        ("没有名字", None),
    ],
)
def test_in_scripts_without_spaces_a_term_stands_where_its_characters_do(text, parts):
    template = Template.of(text, ["小明", "小红", "小明明", "สมชาย", "Anna"], "{name}")
    assert (None if template is None else template.parts) == parts
    assert template is None or template.fill(template.found).text == text


def test_capitals_are_kept_where_a_script_has_none():
    assert Template.of("小明喜欢电影", ["小明", "Anna"], "{name}").fill("Anna").text == "Anna喜欢电影"


def test_texts_inside_others_are_taken_once_and_slots_come_first():
    texts = [
        "so said anna .",
        "he was wrong , so said anna .",
        "nothing",
        "{name} left.",
        "so said anna .",
        "john left",
    ]
    items = [Item(str(i), text) for i, text in enumerate(texts)]
    got = list(templates_of(items, ["Anna", "John"], "{name}"))
    assert [t.fill(t.found or "X").text for t in got] == ["X left.", "he was wrong , so said anna .", "john left"]


# -- what is found ---------------------------------------------------------------------------------------------------


def test_a_planted_bias_is_found_and_only_that(explainer):
    names = ["Kevin", *NAMES[:5]]
    got = probe(biased(explainer, ["Kevin"]), TEMPLATES, names, target="positive")
    assert got.groups[0] == "Kevin"
    for measure in ("logit", "relevance"):
        assert got.effect("Kevin", measure).sure > 0
        for name in names[1:]:  # the rest has Kevin in it
            mean = got.effect(name, measure).mean
            assert mean == pytest.approx(-got.effect("Kevin", measure).mean / 5, rel=1e-3, abs=1e-6)
    assert "*" in str(got.effect("Kevin"))


def test_a_group_that_is_preferred_is_found(explainer):
    groups = {"a": NAMES[:3], "b": NAMES[6:9]}
    model = biased(explainer, groups["b"])
    got = probe(model, TEMPLATES[:6], groups, target="positive")
    assert got.effect("b").sure > 0 > got.effect("a").sure
    assert got.effect("b").mean == pytest.approx(-got.effect("a").mean)
    against = probe(model, TEMPLATES[:6], groups, target="negative")
    assert against.effect("b").sure < 0


def test_where_there_is_no_bias_none_is_found(explainer):
    model = indifferent(explainer)
    for terms in (NAMES[:4], {"a": NAMES[:3], "b": NAMES[6:9]}):
        got = probe(model, TEMPLATES[:6], terms, target="positive")
        for effect in got.effects:
            if effect.against == "rest":
                assert effect.low <= 0 <= effect.high
                assert effect.mean == pytest.approx(0, abs=1e-5)
            if effect.measure == "moved" and effect.against == "":
                assert effect.mean == pytest.approx(0, abs=1e-4)
        assert not any(row["flip"] for row in got.texts)
        assert not any("*" in str(effect) for effect in got.effects if effect.against == "rest")


@pytest.mark.parametrize(("measure", "share"), [("logit", 0.4), ("relevance", 0.7)])
def test_groups_drawn_at_random_do_not_differ_in_a_real_model(found, measure, share):
    """Names do differ there, so that over templates alone many such groups would seem to."""
    values = np.array([r[measure] for r in found.texts]).reshape(len(TEMPLATES), -1)[:, : len(NAMES)]
    rng = np.random.default_rng(0)
    contrast = np.repeat([1.0, -1.0], 6) / 6
    both = alone = 0
    for _ in range(500):
        drawn = values[:, rng.permutation(len(NAMES))]
        _, low, high = interval(drawn, contrast, [range(6), range(6, 12)], ERROR)
        both += not low <= 0 <= high
        _, low, high = interval(drawn, contrast, [], ERROR)
        alone += not low <= 0 <= high
    assert both <= 0.05 * 500
    assert alone > share * 500


@pytest.mark.parametrize("error", [0.05, 0.005])
def test_intervals_miss_as_often_as_they_say(error):
    """Templates and terms both vary, and so does each pair."""
    rng = np.random.default_rng(1)
    contrast = np.repeat([1.0, -1.0], 5) / 5
    missed = 0
    for _ in range(1000):
        values = rng.normal(size=(8, 1)) * 5 + rng.normal(size=(1, 10)) + rng.normal(size=(8, 10))
        values[:, :5] += rng.normal(size=(8, 1))  # some templates like one group better
        _, low, high = interval(values, contrast, [range(5), range(5, 10)], error)
        missed += not low <= 0 <= high
    assert missed <= (error + 3 * (error / 1000) ** 0.5) * 1000
    assert missed >= 0.1 * error * 1000  # nor are they so wide that nothing would be found


def test_of_single_terms_the_interval_is_students_overtemplates_of():
    values = np.random.default_rng(2).normal(size=(9, 3))
    contrast = np.array([1.0, -0.5, -0.5])
    mean, low, high = interval(values, contrast, [range(1), range(1, 2), range(2, 3)], 0.01)
    each = values @ contrast
    assert mean == pytest.approx(each.mean())
    expected = scipy_stats.t.interval(0.99, 8, each.mean(), scipy_stats.sem(each))
    assert (low, high) == pytest.approx(expected)


# -- every number, by hand -------------------------------------------------------------------------------------------


def test_rows_are_what_the_explainer_says(explainer, found):
    assert [row["term"] for row in found.texts] == [*NAMES, "[MASK]"] * len(TEMPLATES)
    for row in found.texts[::11]:
        template = TEMPLATES[row["template"]]
        assert row["text"] == template.replace("{name}", row["term"])
        e = explainer(row["text"], target="positive")
        assert row["probability"] == pytest.approx(float(e.probabilities[0, 1]), abs=1e-5)
        assert row["logit"] == pytest.approx(float(e.logits[0, 1]), abs=1e-4)
        assert row["prediction"] == e.prediction_names[0]
        own = [t for t, (a, b) in zip(e.tokens[0], e.offsets[0], strict=True) if row["text"][a:b] == row["term"]]
        assert row["tokens"].split() == own[: len(own) // template.count("{name}")]
        scores = [s for t, s in zip(e.tokens[0], e.scores[0].tolist(), strict=True) if t in own]
        assert row["relevance"] == pytest.approx(sum(scores), abs=1e-4)
        words = sum(w.score for w in e.words[0])
        assert row["relevance"] + row["others"] == pytest.approx(words, abs=1e-4)


def test_effects_are_means_and_differences_of_the_rows(found):
    for measure in MEASURES:
        table = np.array([r[measure] for r in found.texts]).reshape(len(TEMPLATES), -1)
        names, neutral = table[:, : len(NAMES)].mean(0), table[:, -1].mean()
        for i, name in enumerate(NAMES):
            rest = np.delete(names, i).mean()
            for against, value in (("", names[i]), ("rest", names[i] - rest), ("neutral", names[i] - neutral)):
                effect = found.effect(name, measure, against)
                assert effect.mean == pytest.approx(value, abs=1e-9)
                assert effect.low <= effect.mean <= effect.high
                assert effect.texts == len(TEMPLATES)


def test_differences_of_several_groups_hold_together(found):
    each = [[r["logit"] for r in found.texts if r["term"] == name] for name in NAMES]
    differences = np.array(each[0]) - np.mean(each[1:], 0)
    half = scipy_stats.t.ppf(1 - 0.05 / 12 / 2, len(TEMPLATES) - 1) * scipy_stats.sem(differences)
    effect = found.effect(NAMES[0])
    assert effect.high - effect.mean == pytest.approx(half)
    level = found.effect(NAMES[0], against="")
    assert level.high - level.mean == pytest.approx(
        scipy_stats.t.ppf(0.975, len(TEMPLATES) - 1) * scipy_stats.sem(each[0])
    )
    assert "99.58 % each, so that the 12 of a column hold together in 95 %" in found.table()


def test_flips_are_counted(explainer):
    terms = ["wonderful", "superb", "awful"]
    got = probe(explainer, ["It is {name}.", "How {name}!"], terms, target="positive")
    flips = {term: [r["flip"] for r in got.texts if r["term"] == term] for term in terms}
    assert flips == {"wonderful": [False, False], "superb": [False, False], "awful": [True, True]}
    line = next(line for line in got.table().splitlines() if line.startswith("| awful"))
    assert [cell.strip() for cell in line.split("|")][2:6] == ["1", "1.0", "2", "2"]


def test_every_other_word_has_its_own_relevance(explainer):
    filled = Template(("Oh, ", "'s film (with ", "): dull.")).fill("Emma")
    e = explainer(filled.text, target="positive")
    row, others = _read(e, filled)
    scores = {(w.start, w.text): w.score for w in e.words[0]}
    split = ["Oh", ",", "'", "s", "film", "(", "with", ")", ":", "dull", "."]
    assert [filled.text[k : k + len(word)] for k, word in zip(filled.others, split, strict=True)] == split
    own = {k: v for k, v, word in zip(filled.others, others[1:], split, strict=True) if word not in ("'", "s")}
    assert own == pytest.approx({k: v for (k, text), v in scores.items() if "Emma" not in text}, abs=1e-6)
    names = sum(v for (_, text), v in scores.items() if "Emma" in text)  # "Emma's" is one word
    assert row["relevance"] + others[3] + others[4] == pytest.approx(names, abs=1e-6)
    assert others[0] == 0


def test_what_other_words_count_is_followed_word_by_word(explainer):
    got = probe(explainer, TEMPLATES[:2], ["John", "wonderful"], target="positive")
    for i in range(2):
        rows = {r["term"]: r for r in got.texts if r["template"] == i}
        each = []
        for term in ("John", "wonderful"):
            e = explainer(rows[term]["text"], target="positive")
            each.append([w.score for w in e.words[0] if w.text != term])
        moved = np.abs(np.subtract(*each)).sum() / 2  # each is as far from their mean
        assert moved > 0.05
        assert rows["John"]["moved"] == pytest.approx(moved, rel=1e-3)
        assert rows["wonderful"]["moved"] == pytest.approx(moved, rel=1e-3)


def test_what_is_measured_badly_does_not_lead(explainer):
    got = probe(explainer, TEMPLATES, ["John", "dull", "Ling"], target="positive")
    assert got.groups[0] == "dull"
    sure = [abs(got.effect(group).sure) for group in got.groups]
    assert sure == sorted(sure, reverse=True)


def test_few_templates_are_marked_and_unknown_terms_named(explainer):
    got = probe(explainer, TEMPLATES[:2], ["John", "日本"], target="positive")
    assert all(effect.few for effect in got.effects)
    assert "*" not in str(got.effect("John"))
    assert "? marks fewer than 5 templates" in got.table()
    assert "does not know 日本" in got.table()
    assert got.settings["unknown"] == ["日本"]
    assert not any(e.few for e in probe(explainer, TEMPLATES[:2], ["John", "Paul"], min_count=2).effects)
    one = probe(explainer, TEMPLATES[:1], ["John", "Paul"])
    assert one.effect("John").low == -np.inf


def test_without_a_target_it_is_what_is_predicted_most_often(explainer):
    assert probe(explainer, ["{name} is dull.", "{name} is bad.", "{name} is superb."], ["John", "Paul"]).settings[
        "target"
    ] == "negative"  # fmt: skip


def test_nothing_depends_on_the_batch(explainer):
    one, many = (probe(explainer, TEMPLATES[:2], NAMES[:3], batch_size=n) for n in (1, 5))
    for a, b in zip(one.effects, many.effects, strict=True):
        assert (a.group, a.measure, a.against) == (b.group, b.measure, b.against)
        assert (a.mean, a.low, a.high) == pytest.approx((b.mean, b.low, b.high), abs=1e-4)


def test_real_texts_are_swapped_as_they_are_written(explainer):
    texts = ["michael moore has made a moving film .", "i liked Paul , not john .", "nothing here", "John is dull ."]
    got = probe(explainer, texts, ["Michael", "Paul", "John"], target="positive")
    assert [r["text"] for r in got.texts if r["term"] == "Paul"] == [
        "paul moore has made a moving film .", "i liked Paul , not john .", "Paul is dull .",
    ]  # fmt: skip
    assert (got.settings["templates"], got.settings["real"]) == (3, 3)
    assert {r["found"] for r in got.texts} == {"Michael", "Paul", "John"}
    assert probe(explainer, texts, ["Michael", "Paul", "John"], limit=2).settings["templates"] == 2


def test_a_model_without_classes_is_ranked_by_its_value_and_has_no_flips(tmp_path, monkeypatch):
    tokenizer = wordpiece()
    regression = small(BertForSequenceClassification, bert_config(len(tokenizer), num_labels=1))
    got = probe(whence.Explainer(regression, tokenizer), ["a {name} film", "{name} plot"], ["good", "bad"])
    assert got.against == ["rest", "neutral"]
    assert "probability" not in got.table()
    assert "flip" not in got.table()
    assert [len(line.split("|")) for line in got.table().splitlines()[:4]] == [11] * 4
    assert not any("flip" in row for row in got.texts)
    monkeypatch.setattr("whence.bias_probe.probe._drawn", lambda found, kind: b"")
    got.save(tmp_path)
    assert "flip" not in (tmp_path / "texts.csv").read_text(encoding="utf-8").splitlines()[0]
    assert "flip" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_neutral_word_is_one_token_also_where_a_text_has_small_letters_only(explainer):
    got = probe(explainer, ["i like anna a lot", "I like {name}"], ["Anna", "John"])
    rows = [row for row in got.texts if not row["group"]]
    assert [row["text"] for row in rows] == ["I like [MASK]", "i like [MASK] a lot"]
    assert [row["tokens"] for row in rows] == ["[MASK]", "[MASK]"]
    other = probe(explainer, ["i like anna a lot"], ["Anna", "John"], neutral="Someone")
    assert other.texts[-1]["text"] == "i like someone a lot"


def test_the_neutral_word_leaves_the_mask_that_a_model_fills_in():
    tokenizer = wordpiece()
    masked = whence.Explainer(bert(tokenizer, BertForMaskedLM), tokenizer)
    texts = ["the {name} is [MASK]", "a {name} is [MASK]"]
    got = probe(masked, texts, ["good", "bad"], target="film")
    assert got.settings["neutral"] == "[UNK]"
    film = tokenizer.convert_tokens_to_ids("film")
    for row in got.texts:
        given = tokenizer(row["text"], return_tensors="pt")
        at = given["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        assert given["input_ids"][0, at + 1] == tokenizer.sep_token_id  # the mask of the template
        assert row["logit"] == pytest.approx(float(masked.model(**given).logits[0, at, film].detach()), abs=1e-4)
    for terms, neutral in ((["good", "bad"], "[MASK]"), (["good", "[MASK]"], None)):
        with pytest.raises(whence.InputError, match=r"fills in the first \[MASK\]"):
            probe(masked, texts, terms, neutral=neutral)


# -- kept ------------------------------------------------------------------------------------------------------------


def test_saved_tables_are_what_was_found(found, tmp_path):
    written = found.save(tmp_path / "out")
    assert {p.name for p in written} == {
        "report.md", "effects.csv", "texts.csv", "differences.png", "differences.svg",
    }  # fmt: skip
    with (tmp_path / "out" / "effects.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.effects) == len(NAMES) * 5 * 3
    for row, effect in zip(rows, found.effects, strict=True):
        assert (row["group"], row["measure"], row["against"]) == (effect.group, effect.measure, effect.against)
        assert float(row["mean"]) == effect.mean
        assert float(row["sure"]) == effect.sure
    with (tmp_path / "out" / "texts.csv").open(newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == [row["text"] for row in found.texts]
    assert found.table() in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "differences.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "out" / "differences.svg").read_text(encoding="utf-8")
    assert "<svg" in drawing


# -- the command -----------------------------------------------------------------------------------------------------

app = typer.Typer()
app.command()(command)


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "300", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_terms_are_read_from_words_and_files(tmp_path):
    (tmp_path / "a.txt").write_text("women=Anna, Emma\n\nmen = John,Paul\nKim\n")
    (tmp_path / "a.json").write_text('{"women": ["Anna", "Emma"], "men": ["John"]}')
    (tmp_path / "b.json").write_text('["Anna", "Mary, Queen"]')
    assert parse_terms(["a, b,c"]) == {"a": ["a"], "b": ["b"], "c": ["c"]}
    assert parse_terms(["x=a,b", "y=c", "x=d"]) == {"x": ["a", "b", "d"], "y": ["c"]}
    assert parse_terms([str(tmp_path / "a.txt")]) == {
        "women": ["Anna", "Emma"],
        "men": ["John", "Paul"],
        "Kim": ["Kim"],
    }
    assert parse_terms([str(tmp_path / "a.json")]) == {"women": ["Anna", "Emma"], "men": ["John"]}
    assert parse_terms([str(tmp_path / "b.json")]) == {"Anna": ["Anna"], "Mary, Queen": ["Mary, Queen"]}


def test_the_command_prints_the_table_and_writes_the_rest(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr("whence.bias_probe.probe._drawn", lambda found, kind: b"")
    (tmp_path / "templates.txt").write_text("\n".join(TEMPLATES[:4]))
    result = run(
        tmp_path / "templates.txt", "Only {name} knows.", "--model", MODELS / "sentiment", "--terms", "a=John,Paul",
        "--terms", "b=Tom,George", "--target", "positive", "--out", tmp_path / "out",
    )  # fmt: skip
    expected = probe(
        explainer, [*TEMPLATES[:4], "Only {name} knows."], {"a": ["John", "Paul"], "b": ["Tom", "George"]}, "positive"
    )
    assert result.stdout.strip() == expected.table().strip()
    assert "wrote" in result.stderr
    assert (tmp_path / "out" / "report.md").exists()


def test_the_command_swaps_in_a_dataset(tmp_path):
    (tmp_path / "reviews.csv").write_text("review,stars\nJohn is superb,1\nnothing,0\nI saw Paul,0\n")
    result = run(
        tmp_path / "reviews.csv", "--model", MODELS / "sentiment", "--terms", "John,Paul", "--column", "label=stars",
        "--neutral", "someone", "--method", "gradient-x-input",
    )  # fmt: skip
    assert "2 templates, 2 of them real texts in which one of the terms stood" in result.stdout
    assert "Neutral word: someone. gradient-x-input." in result.stdout


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("neither a file", ["nowhere.txt", "--terms", "a,b"]),
        ("None of the texts has the slot '[X]'", ["{file}", "--terms", "a,b", "--slot", "[X]"]),
        ("is in 2 groups", ["{name}", "--terms", "x=a,b", "--terms", "y=b"]),
        ("at least one term", ["{name}", "--terms", ","]),
        ("no terms that can be read", ["{name}", "--terms", "{json}"]),
        ("'postive'", ["{name} left", "--terms", "a,b", "--target", "postive"]),
    ],
)
def test_wrong_calls_are_sentences(said, words, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "plain.txt").write_text("{name} left\n")
    files = {"{json}": tmp_path / "bad.json", "{file}": tmp_path / "plain.txt"}
    words = [files.get(word, word) for word in words]
    result = run(*words, "--model", MODELS / "sentiment", code=2)
    assert said in result.stderr
    assert result.stdout == ""


def test_what_cannot_be_probed_is_refused(explainer):
    with pytest.raises(whence.TargetError, match="one class"):
        probe(explainer, TEMPLATES, NAMES, target=[0, 1])
    with pytest.raises(whence.InputError, match="not tuple"):
        probe(explainer, [("{name}", "b")], NAMES)
    seer = whence.Explainer(tiny.vit(), processor=lambda picture: torch.zeros(3, 12, 12), modality="image")
    with pytest.raises(whence.InputError, match="reads image"):
        probe(seer, TEMPLATES, NAMES)
    bare = wordpiece()
    bare.mask_token = bare.unk_token = None
    alone = whence.Explainer(bert(wordpiece()), bare)
    with pytest.raises(whence.InputError, match="one group"):
        probe(alone, ["a {name} film"], {"all": ["good", "bad"]})
    with pytest.raises(whence.InputError, match="no 'colour' of 'John'"):
        probe(explainer, TEMPLATES[:1], ["John", "Paul"]).effect("John", "colour")


@pytest.mark.parametrize(
    ("said", "terms"),
    [
        ("Terms are a list of texts, not the text 'good'", "good"),
        ("terms of group 'x' are a list of texts, not the text 'good'", {"x": "good", "y": ["bad"]}),
        ("Terms are a list of texts, not NoneType", None),
        ("terms of group 'x' are a list of texts, not int", {"x": 5}),
        (r"A term is a text, not int \(1\)", [1, 2]),
        (r"name of a group is a text, not int", {1: ["a"], 2: ["b"]}),
        ("at least one term", {"": ["a"], "b": ["c"]}),
        ("at least one term", {"a": [], "b": ["c"]}),
        ("at least one letter", ["a", " "]),
    ],
)
def test_terms_that_are_none_are_sentences(explainer, said, terms):
    with pytest.raises(whence.InputError, match=said):
        probe(explainer, TEMPLATES, terms)


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("Templates are a list of texts, not the text 'a {name} film'", {"templates": "a {name} film"}),
        ("Templates are a list of texts, not NoneType", {"templates": None}),
        ("The slot is the text that marks the gap", {"slot": ""}),
        ("The slot is the text that marks the gap", {"slot": None}),
        ("limit must be a whole number, at least 1, not 0", {"limit": 0}),
        ("limit must be a whole number, at least 1, not -1", {"limit": -1}),
        ("batch_size must be a whole number, at least 1, not '9'", {"batch_size": "9"}),
        ("min_count must be a whole number", {"min_count": 2.5}),
    ],
)
def test_wrong_arguments_are_sentences(explainer, said, options):
    with pytest.raises(whence.InputError, match=said):
        probe(explainer, **{"templates": TEMPLATES, "terms": NAMES, **options})


# -- the documentation -----------------------------------------------------------------------------------------------

SST2 = re.compile(r"    whence (probe sst2 .*--model (\S+) .*)\n\n((?:\|.*\n)+)")


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_tables_of_the_documentation_are_what_the_command_prints(which, tmp_path):
    page = (DOCS / "bias.md").read_text(encoding="utf-8")
    words, model, table = SST2.findall(page)[which]
    directory = DOCS.parent / model if "/" in model else shared("weights", model)
    (tmp_path / "names.txt").write_text(page.split("<<END\n")[1].split("    END")[0])
    places = {model: directory, "datasets": shared("data"), "names.txt": tmp_path / "names.txt"}
    printed = run(*(places.get(word, word) for word in shlex.split(words)[1:])).stdout.splitlines()
    for a, b in zip(printed[: table.count("\n")], table.splitlines(), strict=True):
        assert same(a, b), f"prints {a!r}, written {b!r}"
