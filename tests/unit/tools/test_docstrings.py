"""Every example in a public docstring runs: the reference shows them."""

from __future__ import annotations

import doctest
import inspect
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

import whence
from tests.support import tiny
from tests.support.speech import whisper
from whence.methods.registry import REGISTRY
from whence.models import MODELS

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def documented() -> dict[str, str]:
    """Public names, and public methods of public classes, with their examples as one program."""
    found = {}
    for name in whence.__all__:
        thing = getattr(whence, name)
        found[name] = thing
        if inspect.isclass(thing):
            found |= {f"{name}.{key}": value for key, value in vars(thing).items() if not key.startswith("_")}
    parsed = {name: doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "") for name, thing in found.items()}
    return {name: "".join(example.source for example in examples) for name, examples in parsed.items() if examples}


def texts(folder) -> dict[str, Any]:
    """The classifier that comes with Whence, asked about a film."""
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    inputs = explainer.read("a gripping film").tensors
    e = explainer("a gripping film")
    mask = torch.ones_like(inputs["input_ids"])
    return {
        "explainer": explainer,
        "model": explainer.model,
        "inputs": inputs,
        "ids": inputs["input_ids"],
        "mask": mask,
        "e": e,
    }


def pictures(folder) -> dict[str, Any]:
    """The reader of digits that comes with Whence."""
    Image.open(MODELS / "digits" / "examples" / "3-6.png").save(folder / "cat.jpg")
    return {"explainer": whence.Explainer.from_pretrained(MODELS / "digits")}


def writer(folder) -> dict[str, Any]:
    """A language model that knows five words."""
    words = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["The", "capital", "of", "Italy", "is", "<s>"])}, unk_token="<s>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>")
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, vocab_size=6, bos_token_id=5, eos_token_id=None))
    return {"explainer": whence.Explainer(model.eval(), tokenizer)}


def detector(folder) -> dict[str, Any]:
    """A tiny DETR, in hand and in a directory of a well-known name."""
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    sides = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "d_model": 16,
    }
    config = hf.DetrConfig(backbone_config=backbone, num_queries=20, num_labels=3, **sides)
    model = hf.DetrForObjectDetection(config).eval()
    place = folder / "facebook" / "detr-resnet-50"
    model.save_pretrained(place)
    DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}).save_pretrained(place)
    Image.new("RGB", (48, 32), "red").save(folder / "street.jpg")
    return {"detr": model, "x": torch.rand(1, 3, 32, 32)}


def animals(folder) -> dict[str, Any]:
    """A classifier that knows two animals."""
    model = tiny.bert()
    model.config.id2label = {0: "tabby", 1: "beagle", 2: "other"}
    return {"model": model, "inputs": {"input_ids": tiny.ids(1)}}


def questions(folder) -> dict[str, Any]:
    """A reader of questions."""
    tokenizer = hf.AutoTokenizer.from_pretrained(MODELS / "sentiment")
    model = hf.BertForQuestionAnswering(hf.BertConfig(**SMALL, vocab_size=len(tokenizer)))
    return {"explainer": whence.Explainer(model.eval(), tokenizer)}


def encoder(folder) -> dict[str, Any]:
    """A model that makes vectors."""
    inputs = {"input_ids": tiny.ids(1), "attention_mask": torch.ones(1, 7)}
    return {
        "encoder": hf.BertModel(hf.BertConfig(**SMALL, vocab_size=60)).eval(),
        "inputs": inputs,
        "other": torch.ones(32),
    }


def masked(folder) -> dict[str, Any]:
    """A masked language model."""
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL, vocab_size=60)).eval()
    return {"masked_language_model": model, "inputs": {"input_ids": tiny.ids(1)}}


def decoder(folder) -> dict[str, Any]:
    """A decoder without a tokenizer."""
    return {"model": hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, vocab_size=60)).eval(), "ids": tiny.ids(1, 12)}


def runs(folder) -> dict[str, Any]:
    """A run over four reviews, done."""
    return {"job": whence.run("reviews.jsonl", "my-model", out="why", workers=1)}


def probes(folder) -> dict[str, Any]:
    """Names, swapped."""
    groups = {"women": ["Anna", "Emma"], "men": ["John", "Paul"]}
    return {"found": whence.probe(texts(folder)["explainer"], ["{name} is superb."], groups)}


def transcripts(folder) -> dict[str, Any]:
    """A model that transcribes, and a recording."""
    wave = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
    return {"explainer": whisper(), "speech": wave}


#: what an example needs, where it is not a classifier of texts
WORLDS: dict[str, Callable[..., dict[str, Any]]] = {
    **dict.fromkeys(("Coco", "Region", "locate"), pictures),
    **dict.fromkeys(("Explainer.generate", "Generation"), writer),
    **dict.fromkeys(("box", "query", "segment"), detector),
    **dict.fromkeys(("contrast", "every"), animals),
    **dict.fromkeys(("Job.tables", "summarize"), runs),
    **dict.fromkeys(("Probe.effect", "Probe.save"), probes),
    "Generation.timed_words": transcripts, "answer": questions, "similarity": encoder, "At": masked, "span": decoder,
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the examples find in theirs; methods that they register are gone afterwards."""
    for name in ("path-or-hub-id", "model", "my-model"):
        shutil.copytree(MODELS / "sentiment", tmp_path / name)
    reviews = ["a gripping film", "dull and far too long", "warm, funny, a delight", "a delight"]
    (tmp_path / "texts.txt").write_text("\n".join(reviews))
    (tmp_path / "review.txt").write_text("far too long, and yet a delight. " * 40)
    (tmp_path / "reviews.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in reviews))
    sst2 = tmp_path / "data" / "sst2"
    sst2.mkdir(parents=True)
    (sst2 / "dev.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(reviews)))
    monkeypatch.chdir(tmp_path)
    before = dict(REGISTRY)
    yield tmp_path
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.parametrize(("name", "code"), documented().items(), ids=documented())
def test_the_example_runs(name, code, place):
    torch.manual_seed(0)
    scope = WORLDS.get(name, texts)(place) | {"whence": whence, "dataclass": dataclass}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.WhenceWarning)
        exec(compile(code, name, "exec"), scope)


def test_every_world_is_of_an_example():
    assert set(WORLDS) <= set(documented())
