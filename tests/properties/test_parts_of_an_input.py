"""Models that run the tokens of one input apart, or those of all samples in one row: refused, never wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support.checks import refused

WIDTH = 16


class Encoder(nn.Module):
    """Two pre-norm attention blocks; subclasses run them on parts of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def projected(self, i, x):
        return self.qkv[i](F.layer_norm(x, (WIDTH,))).chunk(3, -1)

    def attended(self, i, q, k, v, mask=None):
        s = q @ k.mT / WIDTH**0.5
        return self.out[i](torch.softmax(s if mask is None else s.masked_fill(~mask, -torch.inf), -1) @ v)


class StepByStep(Encoder):
    """A causal model that is run token by token, with a cache of keys and values."""

    def forward(self, ids):
        caches = [([], []), ([], [])]
        for t in range(ids.shape[1]):
            x = self.embed(ids[:, t : t + 1])
            for i, (keys, values) in enumerate(caches):
                q, k, v = self.projected(i, x)
                keys.append(k)
                values.append(v)
                x = x + self.attended(i, q, torch.cat(keys, 1), torch.cat(values, 1))
        return self.head(x[:, -1])


class Unpadded(Encoder):
    """Runs the real tokens of all samples in one row, each attending to its own sample."""

    def forward(self, ids, attention_mask):
        kept = attention_mask.flatten().nonzero()[:, 0]
        sample = (torch.arange(ids.numel()) // ids.shape[1])[kept]
        x = self.embed(ids).flatten(0, 1)[kept]
        for i in range(2):
            x = x + self.attended(i, *self.projected(i, x), mask=sample[:, None] == sample)
        first = [int((sample < i).sum()) for i in range(len(ids))]
        return self.head(x[first])


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "gradient-x-input", "saliency"])
def test_tokens_that_enter_the_blocks_one_by_one_are_refused(method):
    ids = torch.randint(0, 20, (2, 5), generator=torch.Generator().manual_seed(0))
    refused(whence.WhenceError, "reads '0' in 5 parts", whence.explain, StepByStep(), ids, method, target=0)


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "generic-attention", "rollout"])
def test_samples_without_their_padding_are_explained_alone(method):
    model = Unpadded().double()
    ids = torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    inputs = {"ids": ids, "attention_mask": mask}
    refused(whence.WhenceError, r"different lengths \(4, 6\)", whence.explain, model, inputs, method, target=0)
    alone = whence.explain(model, {"ids": ids[1:], "attention_mask": mask[1:]}, method, target=0)
    cut = whence.explain(model, {"ids": ids[1:, :4], "attention_mask": mask[1:, :4]}, method, target=0)
    assert torch.allclose(alone.scores, cut.scores)
