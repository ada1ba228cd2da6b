"""Without a target, a language model's last token is explained: also of models without attention, and of hybrids."""

import pytest
import torch

import whence
from tools.conformance import families  # noqa: F401  # adds them
from tools.conformance.family import FAMILIES

RECURRENT = ["Mamba", "Mamba-2", "Falcon Mamba", "RWKV", "RecurrentGemma", "Jamba", "Bamba", "LFM2", "Qwen3-Next"]


@pytest.mark.parametrize("name", RECURRENT)
def test_the_last_token_is_explained_by_default(name):
    model = FAMILIES[name].model()
    inputs = {k: v for k, v in FAMILIES[name].batch(2).items() if k in ("input_ids", "use_cache")}
    e = whence.explain(model, inputs)
    with torch.no_grad():
        last = model(**inputs).logits[:, -1]
    assert torch.allclose(e.logits, last)
    assert e.target.tolist() == last.argmax(-1).tolist()
    alone = whence.explain(model, inputs, target=whence.At(-1, e.target.tolist()))
    assert torch.equal(e.scores, alone.scores)
