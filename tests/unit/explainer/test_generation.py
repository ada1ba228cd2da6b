"""Generated text: every token explained, from one forward, as each alone would be."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

import whence
from tests.support import tiny
from tests.support.processors import BYTES, SPEAKER, WORDS, bert, bytes_bpe
from whence.explainer.chat_template import apply_template
from whence.explainer.continuation import decode_with_spans

EXACT = 1e-9
PROMPT = "a good film is"


def causal(seed: int = 0):
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=64, initializer_range=0.3, bos_token_id=1, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def writer():
    return whence.Explainer(causal(), WORDS)


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=None, initializer_factor=3.0,
    )  # fmt: skip
    return whence.Explainer(hf.T5ForConditionalGeneration(config).double().eval(), WORDS)


def test_what_is_written_is_what_the_model_writes(writer):
    g = writer.generate(PROMPT, max_new_tokens=5)
    ids = WORDS(PROMPT, return_tensors="pt")["input_ids"]
    wrote = writer.model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert len(g) == 5
    assert [int(e.target) for e in g] == wrote.tolist()
    assert [int(e.prediction) for e in g] == wrote.tolist()
    assert g.prompt == PROMPT


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "gradient-x-input", "generic-attention", "rollout"])
def test_each_token_is_explained_as_it_would_be_alone(writer, method):
    """Alone: the text up to the token, its logit at the last position."""
    g = writer.generate(PROMPT, max_new_tokens=4, method=method)
    ids = torch.tensor([[*WORDS(PROMPT)["input_ids"], *(int(e.target) for e in g)]])
    first = ids.shape[1] - 4
    for i, e in enumerate(g):
        before = ids[:, : first + i]
        alone = whence.explain(writer.model, {"input_ids": before}, method, target=int(e.target))
        assert (e.scores[:, : first + i] - alone.scores).abs().max() < EXACT * alone.scores.abs().max()
        assert e.scores[:, first + i :].abs().max() == 0
        assert e.special[:, first + i :].all()
        assert abs(float(e.value - alone.value)) < EXACT


def test_the_model_runs_once_for_all_tokens(writer):
    ran = []
    handle = writer.model.register_forward_pre_hook(lambda *_: ran.append(1))
    writer.generate(PROMPT, continuation=" bad bad bad a it")
    handle.remove()
    assert len(ran) == 1


def test_a_span_is_the_sum_of_its_tokens_and_the_target_of_that_name(writer):
    g = writer.generate(PROMPT, max_new_tokens=4)
    ids = [*WORDS(PROMPT)["input_ids"], *(int(e.target) for e in g)]
    first = len(ids) - 4
    asked = whence.span(first + 1, ids[first + 1 : first + 3])
    alone = whence.explain(writer.model, {"input_ids": torch.tensor([ids])}, target=asked)
    summed = g.span(1, 3)
    assert (summed.scores - alone.scores).abs().max() < 1e-6  # the model's own norms are in float32
    assert abs(float(summed.value - alone.value)) < EXACT
    assert summed.target is None
    with pytest.raises(whence.TargetError, match="4 were written"):
        g.span(4)
    with pytest.raises(whence.TargetError, match=r"whence\.span"):
        writer.generate(PROMPT, max_new_tokens=2, method="generic-attention").span()
    with pytest.raises(whence.TargetError, match="whole numbers"):
        g.span("a")
    assert g.span(np.int64(1), np.int64(3)) == summed


@pytest.mark.parametrize(
    ("method", "options"),
    [(name, {}) for name in tiny.METHODS] + [("libragrad", {"probability": True}), ("attn-lrp", {"gamma": 0.1})],
)
def test_a_span_is_refused_or_that_of_the_target_of_its_name(method, options):
    """Rules that carry relevance, attention maps and probabilities are not linear in what is explained."""
    model, ids, first = tiny.gpt2().double(), tiny.ids(1, 8), 5
    inputs, tokens = {"input_ids": ids}, ids[0, first:].tolist()
    asked = [whence.At(first - 1 + i, token) for i, token in enumerate(tokens)]
    try:
        rows = [whence.explain(model, inputs, method, target=at, **options) for at in asked]
        summed = whence.Generation(rows).span()
    except (whence.TargetError, whence.ModelError):
        assert method not in ("conservative-lrp", "attn-lrp", "gradient-x-input", "res-lrp")
        return
    assert not options.get("probability")
    alone = whence.explain(model, inputs, method, target=whence.span(first, tokens), **options)
    assert (summed.scores - alone.scores).abs().max() < 1e-6 * alone.scores.abs().max()
    assert abs(float(summed.value - alone.value)) < EXACT


def test_scores_on_another_scale_do_not_add_up(writer):
    g = writer.generate(PROMPT, max_new_tokens=2)
    with pytest.raises(whence.TargetError, match="do not add up"):
        whence.Generation([e.normalised() for e in g]).span()


def test_a_continuation_is_taken_as_it_is(writer):
    g = writer.generate(PROMPT, " terrible")
    assert g.text.strip() == "terrible"
    assert g.tokens == ["terrible"]
    words = g[0].words[0]
    assert [w.text for w in words if w.part == 0] == PROMPT.split()


def test_an_encoder_decoder_tells_of_both_its_texts(translator):
    g = translator.generate(PROMPT, max_new_tokens=4)
    ids = WORDS(PROMPT, return_tensors="pt")["input_ids"]
    wrote = translator.model.generate(ids, max_new_tokens=4, do_sample=False)[0, 1:].tolist()
    assert [int(e.target) for e in g] == wrote
    assert {n: s.shape for n, s in g.streams.items()} == {"encoder": (4, ids.shape[1]), "decoder": (4, 4)}
    assert g.streams["decoder"].triu(1).abs().max() == 0
    for i, e in enumerate(g):
        inputs = {"input_ids": ids, "decoder_input_ids": torch.tensor([[0, *wrote[:i]]])}
        alone = whence.explain(translator.model, inputs, target=whence.At(i, wrote[i]))
        assert (e.streams["encoder"] - alone.streams["encoder"]).abs().max() < EXACT
        assert (e.streams["decoder"][:, : i + 1] - alone.streams["decoder"]).abs().max() < EXACT
    assert g.table("decoder").rows == tuple(g.tokens)
    with pytest.raises(whence.InputError, match="no stream 'nope' of tokens: choose one of encoder, decoder"):
        g.table("nope")


def test_a_decoder_begins_as_it_did_when_it_wrote(translator):
    model = copy.deepcopy(translator.model)
    explainer = whence.Explainer(model, WORDS)
    for sampling in ({}, {"decoder_start_token_id": 7}):
        g = explainer.generate(PROMPT, max_new_tokens=3, sampling=sampling)
        assert [int(e.target) for e in g] == [int(e.prediction) for e in g]
        assert g.written.tokens[0] == WORDS.convert_ids_to_tokens(sampling.get("decoder_start_token_id", 0))
    model.config.decoder_start_token_id, model.generation_config.decoder_start_token_id = None, 9
    for text in (None, "bad film"):
        g = explainer.generate(PROMPT, text, max_new_tokens=3)
        assert g.written.tokens[0] == WORDS.convert_ids_to_tokens(9)
    g = explainer.generate(PROMPT, "bad film", sampling={"decoder_start_token_id": 7})
    assert g.written.tokens[0] == WORDS.convert_ids_to_tokens(7)
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(whence.ModelError, match=r"set model\.config\.decoder_start_token_id"):
        explainer.generate(PROMPT, "bad film")


def test_tokens_that_the_tokenizer_added_are_not_the_users(writer, translator):
    for explainer in (writer, translator):
        e = explainer.generate(PROMPT, max_new_tokens=2)[1]
        prompt = WORDS(PROMPT)["input_ids"]
        added = [i in (WORDS.cls_token_id, WORDS.sep_token_id) for i in prompt]
        assert sum(added) == 2
        assert e.special[0, : len(prompt)].tolist() == added


SMALL = {
    "vocab_size": len(WORDS), "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 20,
    "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 2, "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
}  # fmt: skip


def test_who_writes_is_decided_by_what_a_model_can_do():
    """Not by its name: a translation model writes, one that fills in masked tokens does not."""
    marian = whence.Explainer(hf.MarianMTModel(hf.MarianConfig(**SMALL)).eval(), WORDS)
    assert marian.target_labels.are_tokens()
    assert len(marian.generate(PROMPT, max_new_tokens=3)) == 3
    for cls in (hf.BertForMaskedLM, hf.BertLMHeadModel):
        filling = whence.Explainer(bert(WORDS, cls), WORDS)
        assert filling.target_labels.are_tokens()
        with pytest.raises(whence.ModelError, match="does not write one token after the other"):
            filling.generate(PROMPT, "bad film")
    decoder = whence.Explainer(bert(WORDS, hf.BertLMHeadModel, is_decoder=True), WORDS)
    assert decoder.generate(PROMPT, "bad film").tokens == ["bad", "film"]


class Plain(nn.Module):
    """A decoder in torch alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(len(WORDS), 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 24, batch_first=True)
        self.head = nn.Linear(32, len(WORDS))

    def forward(self, input_ids, attention_mask=None):
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        return self.head(self.block(self.embed(input_ids), mask, is_causal=True))


def test_a_model_in_torch_alone_is_explained_on_what_it_is_given():
    explainer = whence.Explainer(Plain().eval(), WORDS)
    assert explainer.generate(PROMPT, "bad film").tokens == ["bad", "film"]
    with pytest.raises(whence.ModelError, match="give the continuation"):
        explainer.generate(PROMPT)


def test_a_chat_template_is_shown_and_is_not_the_users(writer):
    class Chatting:
        """The tokenizer, with a template."""

        def __getattr__(self, name):
            return getattr(WORDS, name)

        def __call__(self, *args, **kwargs):
            return WORDS(*args, **kwargs)

        def __len__(self):
            return len(WORDS)

        def apply_chat_template(self, messages, tokenize, add_generation_prompt):
            assert not tokenize
            assert add_generation_prompt
            return "".join(f"it {m['content']} plot " for m in messages)

    explainer = whence.Explainer(writer.model, Chatting())
    g = explainer.generate([{"role": "user", "content": "a good film"}], max_new_tokens=2)
    assert g.prompt == "it a good film plot "
    own = [not s for s in g[0].special[0].tolist()]
    words = [WORDS.decode([i]) for i in WORDS(g.prompt, add_special_tokens=False)["input_ids"]]
    assert [w for w, mine in zip(words, own, strict=False) if mine] == ["a", "good", "film"]
    with pytest.raises(whence.InputError, match="chat template"):
        writer.generate([{"role": "user", "content": "a good film"}])


def rendered(template, *contents):
    """The text that a template makes of messages, and what of it is said to be the user's."""
    tokenizer = bytes_bpe()
    tokenizer.chat_template = template
    return apply_template(tokenizer, [{"role": "user", "content": c} for c in contents])


FRAME = "{{% for m in messages %}}<{{{{ m['role'] }}}}> {{{{ {} }}}}\n{{% endfor %}}<assistant> "


@pytest.mark.parametrize("contents", [("use",), ("a film", "er"), ("assistant", "user> user", "\n"), ("  use\n", "a")])
def test_the_users_words_are_found_where_the_template_puts_them(contents):
    """Not where the template's own words are the same."""
    for written, kept in (("m['content']", contents), ("m['content'] | trim", [c.strip() for c in contents])):
        text, own = rendered(FRAME.format(written), *contents)
        assert text == "".join(f"<user> {c}\n" for c in kept) + "<assistant> "
        before = ["".join(f"<user> {c}\n" for c in kept[:i]) + "<user> " for i in range(len(kept))]
        assert own == [(len(b), len(b) + len(c)) for b, c in zip(before, kept, strict=True)]


def test_what_a_template_makes_of_the_users_words_stands_for_them():
    assert rendered("it is long", "use") == ("it is long", [])
    text, own = rendered(FRAME.format("m['content'] | upper"), "use", "film")
    assert [text[a:b] for a, b in own] == ["USE", "FILM"]
    text, own = rendered(FRAME.format("m['content'] ~ ('!' if 'use' in m['content'] else '?')"), "use")
    assert own == [(0, len(text))]  # what depends on the words cannot be told from them


@pytest.mark.parametrize("continuation", [" Rome", "lam"])
def test_a_continuation_of_a_chat_is_cut_into_tokens_as_the_prompt_is(continuation):
    """Also if the tokenizer adds a token to what it reads, which the template has written itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<s>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["the capital of Italy is Rome and user asks a film"] * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }} {% endfor %}is"
    config = hf.LlamaConfig(
        vocab_size=len(fast), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=60,
    )  # fmt: skip
    g = whence.Explainer(hf.LlamaForCausalLM(config).eval(), fast).generate(
        [{"role": "user", "content": "Italy"}], continuation
    )
    whole = fast(g.prompt + continuation, add_special_tokens=False)["input_ids"]
    assert list(g.written.tokens) == fast.convert_ids_to_tokens(whole)
    assert g.text == continuation
    assert [t for t, s in zip(g.written.tokens, g[0].special[0].tolist(), strict=True) if not s] == ["▁Italy"]


def test_wrong_prompts_are_told_in_a_sentence():
    tokenizer = bytes_bpe()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    explainer = whence.Explainer(SPEAKER, tokenizer)
    for prompt, told in (
        ([{"role": "system", "content": "be"}], "No system role"), ([{"role": "user"}], "message 0.*missing"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "message 0.*list, not a text"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}], "message 1.*NoneType"),
        (["hi"], "Message 0 of the prompt is str"), ([], "an empty list"), (None, "NoneType"), (b"hi", "bytes"),
    ):  # fmt: skip
        with pytest.raises(whence.InputError, match=told):
            explainer.generate(prompt, max_new_tokens=2)
    with pytest.raises(whence.InputError, match="A continuation is a text, not int"):
        explainer.generate("a film", 5)


def test_what_does_not_fit_the_model_is_told_before_it_writes():
    speaker, room = whence.Explainer(SPEAKER, BYTES), 100
    length = len(BYTES(PROMPT)["input_ids"])
    assert len(speaker.generate(PROMPT, max_new_tokens=room - length)) <= room - length
    with pytest.raises(whence.InputError, match=rf"takes {room}.*max_new_tokens={room - length}\)"):
        speaker.generate(PROMPT, max_new_tokens=room - length + 1)
    with pytest.raises(whence.InputError, match=f"The prompt has 101 tokens and the model takes {room}"):
        speaker.generate("z" * 101, max_new_tokens=1)
    for wrong in (0, 1.5, True, "a"):
        with pytest.raises(whence.InputError, match="max_new_tokens must be a whole number, at least 1"):
            speaker.generate(PROMPT, max_new_tokens=wrong)


@pytest.mark.parametrize("family", ["Bart", "Marian"])
def test_what_does_not_fit_an_encoder_or_a_decoder_is_told(family):
    name = {"Bart": "BartForConditionalGeneration", "Marian": "MarianMTModel"}[family]
    explainer = whence.Explainer(getattr(hf, name)(getattr(hf, f"{family}Config")(**SMALL)).eval(), WORDS)
    assert len(explainer.generate(PROMPT, max_new_tokens=20)) == 20
    assert len(explainer.generate("a " * 18, " ".join(["bad"] * 18))) == 20  # [CLS] and [SEP] besides
    with pytest.raises(whence.InputError, match="21 tokens are to be written, and the model takes 20"):
        explainer.generate(PROMPT, max_new_tokens=21)
    with pytest.raises(whence.InputError, match="The prompt has 21 tokens and the model takes 20"):
        explainer.generate("a " * 19, "bad")
    with pytest.raises(whence.InputError, match="The continuation has 21 tokens and the model takes 20"):
        explainer.generate(PROMPT, "bad " * 19)


def test_rows_of_a_table_that_are_not_used_are_no_positions():
    config = hf.OPTConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=24,
        max_position_embeddings=20, word_embed_proj_dim=32, eos_token_id=None,
    )  # fmt: skip
    explainer = whence.Explainer(hf.OPTForCausalLM(config).eval(), WORDS)
    assert len(explainer.generate(PROMPT, max_new_tokens=14)) == 14
    with pytest.raises(whence.InputError, match="the model takes 20"):
        explainer.generate(PROMPT, max_new_tokens=15)


def test_the_model_is_left_as_it_was_found():
    explainer = whence.Explainer(causal(), WORDS)
    part = explainer.model.model.layers[0].train()
    assert not explainer.model.training
    for sampling in ({}, {"no_such_option": 1}):
        with pytest.raises(whence.ModelError) if sampling else contextlib.nullcontext():
            explainer.generate(PROMPT, max_new_tokens=2, sampling=sampling)
        assert part.training
        assert not explainer.model.training
        assert not explainer.model.model.layers[1].training


def test_the_models_own_way_to_answer_does_not_matter(writer):
    told = {"return_dict_in_generate": True, "output_scores": True}
    g, same = (writer.generate(PROMPT, max_new_tokens=2, sampling=s) for s in ({}, told))
    assert g.tokens == same.tokens
    assert len(writer.generate(PROMPT, sampling={"max_new_tokens": 3})) == 3


def test_it_can_be_looked_at_and_kept(writer, tmp_path, capsys):
    g = writer.generate(PROMPT, max_new_tokens=3)
    for name in ("g.html", "g.png", "g.svg", "g.json", "g.safetensors"):
        assert g.save(tmp_path / name).stat().st_size > 500
    assert whence.Generation(whence.load(tmp_path / "g.json")).text == g.text
    assert whence.load(tmp_path / "g.safetensors") == g.explanations
    page = (tmp_path / "g.html").read_text()
    assert page.count('id="card-') == 3
    assert 'href="#card-2"' in page
    g.show()
    assert "What each token written came from" in capsys.readouterr().out
    assert g.matrix.shape == (3, len(g.written.tokens))


def test_what_cannot_write_says_so(writer):
    with pytest.raises(whence.ModelError, match="no language model"):
        whence.Explainer(tiny.bert(), WORDS).generate(PROMPT)
    speaker = whence.Explainer(SPEAKER, BYTES)
    with pytest.raises(whence.InputError, match=f"the model takes {speaker.reader.limit}"):
        speaker.generate(PROMPT, continuation=" bad" * speaker.reader.limit)
    with pytest.raises(whence.ModelError, match="could not write"):
        writer.generate(PROMPT, sampling={"no_such_option": 1})


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_every_character_written_stands_in_one_token_or_at_the_end_of_several(before, text):
    found, places = decode_with_spans(Bytes(), before.encode("utf-8", "replace"), text.encode("utf-8", "replace"))
    assert found == text.encode("utf-8", "replace").decode()
    assert "".join(found[a:b] for a, b in places) == found
