"""``python -m whence.demo``: a small Transformer is trained on the spot, and asked where its answers come from.

The task has a known right answer: a sequence of words hides one *key* among fillers, and the class is the key's. So a
good explanation points at the key, and nothing else will do.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from . import explain, methods

FILLERS = ["the", "a", "of", "and", "to", "in", "it", "was", "on", "for", "with", "as", "at", "by", "this", "from"]
KEYS = {"gripping": 0, "superb": 0, "moving": 0, "tedious": 1, "clumsy": 1, "shallow": 1}
WORDS = ["[cls]", *FILLERS, *KEYS]
CLASSES = ["praise", "blame"]


class Reader(nn.Module):
    """A two-layer ``nn.TransformerEncoder`` with a classifier on the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 32)
        self.position = nn.Parameter(torch.randn(1, 16, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[batch, words]`` to ``[batch, 2]``."""
        x = self.embed(input_ids) + self.position[:, : input_ids.shape[1]]
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


def sample(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences ``[n, 10]`` of fillers with one key, their classes, and where the key is."""
    ids = torch.randint(1, 1 + len(FILLERS), (n, 10))
    ids[:, 0] = 0
    keys = torch.randint(0, len(KEYS), (n,))
    where = torch.randint(1, 10, (n,))
    ids[torch.arange(n), where] = 1 + len(FILLERS) + keys
    return ids, torch.tensor(list(KEYS.values()))[keys], where


def train(steps: int = 150) -> Reader:
    """A reader that has learned the keys."""
    model = Reader()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        ids, classes, _ = sample(64)
        loss = nn.functional.cross_entropy(model(ids), classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def main() -> None:
    """Train, explain, and say how often each method points at the key."""
    torch.manual_seed(0)
    start = time.perf_counter()
    model = train()
    ids, classes, where = sample(200)
    accuracy = (model(ids).argmax(-1) == classes).float().mean()
    spent = time.perf_counter() - start
    print(f"Trained a 2-layer Transformer in {spent:.0f} s; accuracy {accuracy:.0%} on 200 sentences.\n")
    for i in range(2):
        e = explain(model, ids[i : i + 1], "conservative-lrp")
        assert e.prediction is not None
        print(f"'{' '.join(WORDS[w] for w in ids[i, 1:].tolist())}' -> {CLASSES[int(e.prediction[0])]}, because of:")
        for at in e.scores[0].abs().argsort(descending=True)[:3].tolist():
            bar = "#" * round(30 * abs(float(e.scores[0, at])) / float(e.scores.abs().max()))
            print(f"  {WORDS[int(ids[i, at])]:<10}{float(e.scores[0, at]):+8.3f}  {bar}")
        print()
    print("How often the strongest word is the key, and how much of the target reached the words:")
    for name in methods():
        e = explain(model, ids, name)
        hits = (e.scores[:, 1:].argmax(-1) + 1 == where).float().mean()
        kept = (
            "" if e.ledger is None else f"   {float((e.ledger.sums[:, 0] / e.ledger.total).median()):.0%} kept (median)"
        )
        print(f"  {name:<26}{float(hits):>5.0%}{kept}")
    print("\nThe ledger of the first sentence (conservative-lrp):")
    print(explain(model, ids[:1], "conservative-lrp").ledger)


if __name__ == "__main__":
    main()
