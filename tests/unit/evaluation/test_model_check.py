"""What is found out about a model before it is explained: whether it loads, and what Whence sees in it."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertForMaskedLM,
    BertModel,
)

import whence
from tests.support import tiny
from tests.support.checks import refused
from tests.support.goldens import shared
from tests.support.processors import (
    BYTES,
    LABELS,
    SPEAKER,
    WORDS,
    bert,
    bert_config,
    image_processor,
    saved,
    small,
)
from whence.evaluation.random_order_test import Trial
from whence.models import MODELS
from whence.tracing.coverage import Coverage


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "bert", bert(WORDS), WORDS)


@pytest.fixture
def copied(directory, tmp_path):
    """The model's directory, to be spoiled."""
    return shutil.copytree(directory, tmp_path / "copied")


def configured(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


# -- loading ---------------------------------------------------------------------------------------------------------


def test_a_saved_model_is_the_model(directory):
    explainer = whence.Explainer.from_pretrained(directory)
    assert explainer.modality == "text"
    assert not explainer.model.training
    e, direct = explainer("a good film"), whence.Explainer(bert(WORDS), WORDS)("a good film")
    assert e == direct
    assert e.labels == LABELS


@pytest.mark.parametrize(("cls", "text"), [(BertForMaskedLM, "a [MASK] film"), (None, "the film is")])
def test_a_saved_language_model_is_the_model(tmp_path, cls, text):
    model, tokenizer = (SPEAKER, BYTES) if cls is None else (bert(WORDS, cls), WORDS)
    loaded = whence.Explainer.from_pretrained(str(saved(tmp_path, model, tokenizer)))
    assert loaded(text) == whence.Explainer(model, tokenizer)(text)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, "auto"])
def test_precision_is_as_asked(directory, dtype):
    explainer = whence.Explainer.from_pretrained(directory, dtype=dtype)
    wanted = torch.float32 if dtype == "auto" else dtype
    assert {p.dtype for p in explainer.model.parameters()} == {wanted}
    assert explainer("bad film").scores.isfinite().all()


def test_a_home_directory_is_found(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert whence.Explainer.from_pretrained("~/bert").modality == "text"


def test_a_missing_directory(tmp_path):
    refused(whence.FileError, "does not exist", whence.Explainer.from_pretrained, tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    refused(whence.FileError, "is a file", whence.Explainer.from_pretrained, tmp_path / "file")


@pytest.mark.parametrize(("gone", "match"), [
    ("config.json", "no config.json"), ("model.safetensors", "no weights"), ("token*", "tokenizer"),
])  # fmt: skip
def test_a_directory_that_lacks_something(copied, gone, match):
    for file in copied.glob(gone):
        file.unlink()
    refused(whence.WhenceError, match, whence.Explainer.from_pretrained, copied)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_weights_that_were_cut_off(copied, share):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: int(weights.stat().st_size * share)])
    refused(whence.ModelError, "could not be loaded", whence.Explainer.from_pretrained, copied)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"model_type": "nothing"}', "{}"])
def test_a_damaged_configuration(copied, content):
    (copied / "config.json").write_text(content)
    refused(whence.WhenceError, r"damaged|could not be loaded|names no class", whence.Explainer.from_pretrained, copied)


def test_weights_that_would_be_random_are_refused(copied):
    small(BertModel, bert_config(len(WORDS))).save_pretrained(copied)
    configured(copied, architectures=["BertForSequenceClassification"])
    text = refused(whence.ModelError, "lacks weights", whence.Explainer.from_pretrained, copied)
    assert "classifier" in text
    assert "random" in text


def test_weights_of_another_size_are_refused(copied):
    configured(copied, intermediate_size=48)
    refused(whence.ModelError, r"lacks weights|could not be loaded", whence.Explainer.from_pretrained, copied)


class Evil:
    def __reduce__(self):
        return (open, ("pwned", "w"))


def test_a_pickle_is_opened_only_if_it_is_trusted(copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (copied / "model.safetensors").unlink()
    torch.save(bert(WORDS).state_dict(), copied / "pytorch_model.bin")
    assert "allow_pickle=True" in refused(whence.ModelError, "pickled", whence.Explainer.from_pretrained, copied)
    assert whence.Explainer.from_pretrained(copied, allow_pickle=True)("bad") == whence.Explainer(bert(WORDS), WORDS)(
        "bad"
    )
    torch.save({"bert": Evil()}, copied / "pytorch_model.bin")
    refused(whence.ModelError, "pickled", whence.Explainer.from_pretrained, copied)
    refused(whence.ModelError, "could not be loaded", whence.Explainer.from_pretrained, copied, allow_pickle=True)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("changes", [
    {"auto_map": {"AutoModel": "code.Mine"}},
    {"auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Mine"}, "model_type": "mine"},
])  # fmt: skip
def test_code_that_comes_with_a_model_is_not_run(copied, tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    configured(copied, architectures=["Mine"], **changes)
    (copied / "code.py").write_text("open('pwned', 'w')")
    refused(whence.ModelError, r"trust_remote_code", whence.Explainer.from_pretrained, copied)
    assert not (tmp_path / "pwned").exists()


def test_an_unknown_class_is_named(copied):
    configured(copied, architectures=["BertForMindReading"])
    refused(whence.ModelError, "BertForMindReading", whence.Explainer.from_pretrained, copied)


def test_a_trained_model_of_reactions():
    explainer = whence.Explainer.from_pretrained(shared("weights", "rxnmapper_albert"))
    e = explainer("CC(=O)[MASK].OCC>>CC(=O)OCC", target="Cl")
    assert e.target_names == ("Cl",)
    assert "[MASK]" in [w.text for w in e.words[0]]
    assert len(e.words[0]) == len(e.tokens[0]) - 2


@pytest.mark.parametrize(("reaction", "atom", "place"), [
    ("CC(=O)Cl.NCc1ccccc1>>CC(=O)[MASK]Cc1ccccc1", "N", 9),  # the nitrogen of an amide was that of the amine
    ("Brc1ccccc1.OB(O)c1ccncc1>>c1ccc(-c2cc[MASK]cc2)cc1", "n", 20),  # a pyridine keeps its own
])  # fmt: skip
def test_an_atom_of_the_product_comes_from_the_reactants(reaction, atom, place):
    e = whence.Explainer.from_pretrained(shared("weights", "rxnmapper_albert"))(reaction)
    assert e.target_names == (atom,)
    assert int(e.scores[0].argmax()) == place
    assert e.tokens[0][place] == atom


def test_raw_input_without_a_processor_is_refused():
    for raw in ("a film", np.zeros(3), ["a film"], None):
        with pytest.raises(whence.InputError, match="takes tensors"):
            whence.Explainer(tiny.bert())(raw)
    with pytest.raises(whence.InputError, match="needs a processor"):
        whence.Explainer(tiny.bert(), modality="text")
    with pytest.raises(whence.InputError, match="The modality is one of"):
        whence.Explainer(tiny.bert(), WORDS, modality="smell")


# -- what is seen ----------------------------------------------------------------------------------------------------


def test_the_report_of_a_text_model():
    found = whence.check(whence.Explainer(bert(WORDS), WORDS), "a good film")
    assert found.model == "BertForSequenceClassification"
    assert found.attentions == [(4, 5, 5)] * 2
    assert found.streams == {"text": 5}
    assert found.difference < 1e-5
    assert found.parameters == sum(p.numel() for p in bert(WORDS).parameters())
    assert set(found.methods) == set(whence.list_methods())
    assert [name for name, why in found.methods.items() if why] == ["dave"]  # which explains pictures
    expected = [
        "2 layers, 4 heads",
        "text (5 positions)",
        "reads text",
        "conservative-lrp",
        "tanh x 1",
        "fused        =",
    ]
    for said in [*expected, *found.warnings]:
        assert said in str(found)


def test_the_report_of_an_image_model():
    processor = image_processor("ViTImageProcessor")(size={"height": 12, "width": 12})
    found = whence.check(whence.Explainer(tiny.vit(), processor))
    assert found.attentions == [(4, 10, 10)] * 2
    assert found.streams == {"image": 10}
    assert "reads image" in str(found)
    assert "image (10 positions)" in str(found)


@pytest.mark.parametrize("model", [SPEAKER, bert(WORDS, BertForMaskedLM)], ids=["causal", "masked"])
def test_a_language_model_is_checked_without_an_input(model):
    found = whence.check(whence.Explainer(model, BYTES if model is SPEAKER else WORDS))
    assert found.difference < 1e-5
    assert len(found.attentions) == 2


class Mlp(nn.Module):
    """Reads floats and attends to nothing."""

    def __init__(self, odd: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.odd = nn.Linear(6, 16), nn.Linear(16, 3), odd

    def forward(self, x):
        h = torch.relu(self.up(x))
        for _ in range(4 if self.odd else 0):
            h = torch.cos(torch.erfinv(torch.sin(h) / 2))
        return self.down(h)


def test_a_model_without_attention_is_said_to_have_none():
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    found = whence.check(whence.Explainer(Mlp()), {"x": x})
    assert found.attentions == []
    assert "no heads" in str(found)
    assert any("No attention was found" in said for said in found.warnings)
    assert "no attention" in found.methods["generic-attention"]
    assert found.methods["conservative-lrp"] == ""


def test_a_tensor_is_taken_as_the_explainer_takes_it():
    explainer, x = whence.Explainer(Mlp()), torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    streams = {name: s.shape[1] for name, s in explainer(x).streams.items()}
    assert whence.check(explainer, x).streams == streams


def test_low_coverage_is_warned_of():
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    whole, found = (whence.check(whence.Explainer(Mlp(odd)), {"x": x}) for odd in (False, True))
    assert not any("no rule" in said for said in whole.warnings)
    assert any("of the operations have no rule" in said for said in found.warnings)
    assert found.coverage.share < 0.95
    for said in ("beware", "cos x 1"):  # one elementwise function, whatever its steps
        assert said in str(found)


def test_lost_relevance_is_warned_of():
    """A bias that makes the answer is no part of the input."""
    model = Mlp()
    with torch.no_grad():
        model.down.bias.fill_(100.0)
    found = whence.check(whence.Explainer(model), {"x": torch.ones(1, 6)})
    assert found.kept < 0.5
    assert any("reached the input" in said for said in found.warnings)


# -- the verdict -----------------------------------------------------------------------------------------------------


def seen(**changes):
    """A check in which nothing is wrong but what is changed."""
    coverage = Coverage()
    coverage.seen, coverage.plain = Counter({"linear": 100}), Counter()
    right = {"kept": 1.0, "unaccounted": 1e-6, "difference": 1e-7, "written_out": 1e-6, "coverage": coverage}
    return whence.Check("Model", 10, "text", [(4, 5, 5)], {"text": 5}, **{**right, **changes})


def covered(plain=0, opaque=()):
    coverage = Coverage()
    coverage.seen, coverage.plain, coverage.opaque = Counter({"linear": 100}), Counter({"cos": plain}), list(opaque)
    return coverage


def curves(beaten, orders=20):
    """A trial in which an explanation beats some of the random orders."""
    random = np.tile(np.linspace(0, 1, 5), (orders, 1))
    random[beaten:] += 1
    return Trial(np.linspace(0, 1, 5), np.linspace(0, 1, 5) + 0.5, random, "tokens")


@pytest.mark.parametrize(("changes", "verdict", "said"), [
    ({}, "yes", ""),
    ({"trial": curves(20)}, "yes", ""),
    ({"trial": curves(15)}, "with care", "15 of 20 random orders (p = 0.29): better than chance, but not by much"),
    ({"trial": curves(3)}, "no", "3 of 20 random orders (p = 0.86): no better than chance"),
    ({"kept": 0.1}, "with care", "10% of the target's value reached the input"),
    ({"kept": 2.0}, "with care", "read scores as an order"),
    ({"attentions": []}, "with care", "No attention was found"),
    ({"half": True}, "with care", "half precision"),
    ({"half": True, "difference": 0.05}, "with care", "half precision"),
    ({"warned": ["The model reads its padding."]}, "with care", "reads its padding"),
    ({"coverage": covered(10)}, "with care", "10% of the operations have no rule (cos)"),
    ({"coverage": covered(40)}, "no", "40% of the operations have no rule (cos)"),
    ({"coverage": covered(0, ["flash"])}, "no", 'attn_implementation="sdpa"'),
    ({"unaccounted": 0.3}, "no", "30% of the relevance is lost"),
    ({"difference": 0.05}, "no", "another answer"),
    ({"written_out": 0.05}, "no", 'attn_implementation="eager"'),
])  # fmt: skip
def test_the_verdict_stands_first_with_its_reasons(changes, verdict, said):
    changes = dict(changes)
    attentions = changes.pop("attentions", None)
    found = seen(**changes)
    found.attentions = found.attentions if attentions is None else attentions
    assert found.verdict == verdict
    assert str(found).startswith(f"trust        {verdict}")
    assert said in " ".join(found.warnings)
    assert bool(found.warnings) == (verdict != "yes")
    assert json.loads(json.dumps(found.record()))["verdict"] == verdict


def test_the_worst_reason_decides_and_comes_first():
    found = seen(kept=0.1, unaccounted=0.5)
    assert found.verdict == "no"
    assert [reason.verdict for reason in found.reasons] == ["no", "with care"]


def test_an_attention_in_a_kernel_is_a_no():
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return torch.from_numpy((torch.softmax(q @ k.mT, -1) @ v).numpy())

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
                return torch.autograd.grad(torch.softmax(inputs[0] @ inputs[1].mT, -1) @ inputs[2], inputs, g)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 3)

        def forward(self, x):
            return self.head((x + Kernel.apply(*self.qkv(x).chunk(3, -1))).mean(1))

    x = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    found = whence.check(whence.Explainer(Model()), {"x": x})
    assert found.verdict == "no"
    assert "Kernel" in found.warnings[0]
    assert sum("kernel of its own" in said for said in found.warnings) == 1


def test_an_explanation_of_a_given_input_is_put_on_trial():
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    text = "A gripping and superb film, though it is far too long."
    found = whence.check(explainer, text)
    assert found.trial is not None
    assert found.trial.beaten == whence.trial(explainer, text, explainer(text)).beaten
    assert found.written_out < 1e-3
    assert f"trial        {found.trial}" in str(found)
    assert found.record()["trial"] == {"beaten": found.trial.beaten, "orders": 20}


def test_without_an_input_there_is_no_trial_and_the_report_says_so():
    found = whence.check(whence.Explainer(bert(WORDS), WORDS))
    assert found.trial is None
    assert "give an input of your own" in str(found)
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    assert whence.check(whence.Explainer(Mlp()), {"x": x}).untried.startswith("none:")


def test_a_model_of_tensors_must_be_given_some():
    with pytest.raises(whence.InputError, match="give an input"):
        whence.check(whence.Explainer(Mlp()))
    with pytest.raises(whence.InputError, match="takes tensors"):
        whence.check(whence.Explainer(Mlp()), np.zeros(6))


def test_checking_changes_nothing():
    model = bert(WORDS).train()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    whence.check(whence.Explainer(model, WORDS), "bad")
    assert all(m.training for m in model.modules())
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())


def test_explaining_changes_nothing():
    model = bert(WORDS).train()
    model.bert.encoder.layer[0].eval()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    flags = [m.training for m in model.modules()]
    explainer = whence.Explainer(model, WORDS)
    for inputs in ("bad", ["bad", "good film"]):
        explainer(inputs)
    with pytest.raises(whence.WhenceError):
        explainer("bad", target=9)
    assert explainer.model is model
    assert [m.training for m in model.modules()] == flags
    assert all(
        p.dtype == torch.float32 and torch.equal(p, before[n]) and p.grad is None for n, p in model.named_parameters()
    )
