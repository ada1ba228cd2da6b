"""Tiny models with real tokenizers and processors, in memory and as directories."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
)

SENTENCES = [
    "A gripping film, and a wonderful cast.",
    "The plot is terrible and far too long.",
    "I don't know what to say: it is good, it is bad.",
]


LABELS = {0: "bad", 1: "so-so", 2: "good"}


LIMIT = 100


def image_processor(name):
    """The class of an image processor that needs no torchvision; in transformers 5 it has a name of its own."""
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def wordpiece(size=120):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT)


def bytes_bpe(**more):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return GPT2TokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT, **more)


def bert_config(size, **more):
    return BertConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=LIMIT, initializer_range=0.3, **more,
    )  # fmt: skip


def small(cls, config):
    torch.manual_seed(0)
    return cls(config).eval()


def bert(tokenizer, cls=BertForSequenceClassification, **more):
    labels = {} if cls is BertForMaskedLM else {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    return small(cls, bert_config(len(tokenizer), **labels, **more))


def gpt2(tokenizer, cls, **more):
    return small(cls, GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=LIMIT, bos_token_id=0, eos_token_id=0,
        initializer_range=0.3, **more,
    ))  # fmt: skip


def saved(directory, model, tokenizer=None):
    """A model's directory, as ``save_pretrained`` writes it."""
    model.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    return directory


WORDS, BYTES = wordpiece(), bytes_bpe()


SPEAKER = gpt2(BYTES, GPT2LMHeadModel)
