"""Generated text: 64 tokens after a prompt of 256, all explained, as multiples of one forward + backward of all 320.

python -m tools.benchmarks.generation [--repeats 3]

A Llama-like model of 6 layers x 384 with 32,000 words, random weights. Baselines of the whole sequence in the same run:
forward + backward to the input embeddings, and to the weights besides (a training step).
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import whence
from tools.benchmarks.measure import peak_memory, ratio
from tools.benchmarks.measurements import Measurements

PROMPT, WRITTEN = 256, 64
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["conservative-lrp", "attn-lrp", "gradient-x-input"])
    options = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32_000, num_key_value_heads=6, bos_token_id=None, eos_token_id=None, **SIZES)
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 32_000, (1, PROMPT + WRITTEN))
    targets = [whence.At(PROMPT - 1 + i, int(ids[0, PROMPT + i])) for i in range(WRITTEN)]

    def plain(weights: bool) -> None:
        model.requires_grad_(weights)
        rows = model.get_input_embeddings()(ids).detach().requires_grad_()
        value = model(inputs_embeds=rows).logits[:, -1].max(-1).values.sum()
        torch.autograd.grad(value, [rows, *model.parameters()] if weights else [rows], allow_unused=True)

    def explained(method: str) -> None:
        model.requires_grad_(False)
        whence.explain(model, {"input_ids": ids}, method, target=whence.every(targets))

    def to_input() -> None:
        plain(weights=False)

    def step() -> None:
        plain(weights=True)

    made = Measurements("generation")
    to_input(), step()
    base = peak_memory(to_input)
    training = ratio(step, to_input, options.repeats)
    print(f"a training step: {training.value:.2f} of forward + backward to the input")
    for method in options.methods:
        memory = peak_memory(lambda method=method: explained(method))
        found = ratio(lambda method=method: explained(method), to_input, options.repeats)
        row = found._asdict() | {"memory": memory, "base": base, "step": training.value}
        made.add(method, row)
        print(
            f"{method:<20}{found.value:7.1f} of forward + backward to the input ({found.low:.1f} to {found.high:.1f}), "
            f"{found.value / training.value:.1f} training steps, {memory:.0f} MiB (plain {base:.0f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
