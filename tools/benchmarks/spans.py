"""What a span of outputs costs, as one target and token by token: ``python -m tools.benchmarks.spans``.

A prompt of 1,000 tokens and a span behind it, of a decoder of Llama's kind (6 layers, 512 wide, 8 heads, 4 of keys and
values). Times are of the processor, on one core, so that other work on the machine counts little. Token by token
(``variant="matrix"``) takes minutes for 1,000 outputs and is left out of longer spans.

With ``--model DIRECTORY [--gguf FILE]`` a real language model is asked instead where one of five people lives, and it
is counted how often the city that it answers scores highest of the five.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import whence
from tools.benchmarks.measure import peak_memory
from tools.benchmarks.measurements import Measurements

PROMPT, LONGEST = 1000, 1000  # tokens of the prompt; outputs that are explained token by token
WAYS: dict[str, dict[str, Any]] = {
    "span, no hops": {"hops": 0},
    "flash-trace": {"hops": 1},
    "token by token": {"variant": "matrix"},
}


def build(tokens: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model, with seeded random weights, and one sample."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=16384, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return model, {"input_ids": torch.randint(3, 1000, (1, tokens))}


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The median of the processor's time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(made: Measurements, spans: list[int], repeats: int) -> None:
    """Measure what is not there yet."""
    for span in spans:
        model, inputs = build(PROMPT + span)

        def forward(model: nn.Module = model, inputs: dict[str, Tensor] = inputs) -> None:
            with torch.no_grad():
                model(**inputs)

        forward()
        runs: dict[str, Callable[[], Any]] = {"forward": forward}
        for way, options in WAYS.items():
            given = {"span": (PROMPT, PROMPT + span), **options}
            runs[way] = functools.partial(whence.explain, model, inputs, "flash-trace", **given)
        for way, run in runs.items():
            slow = way == "token by token"
            if f"{span}/{way}" in made or (slow and span > LONGEST):
                continue
            row = {"seconds": seconds(run, 1 if slow else repeats)} | ({} if slow else {"memory": peak_memory(run)})
            made.add(f"{span}/{way}", row)
            print(f"{span:>6} {way:<16}{row['seconds']:9.2f} s", flush=True)


def table(made: Measurements) -> str:
    """What was measured, a row for each span."""
    lines = ["| outputs | forward | " + " | ".join(WAYS) + " | memory |", "|---" * (3 + len(WAYS)) + "|"]
    for span in sorted({int(name.split("/")[0]) for name in made.rows}):
        found = {way: made.rows.get(f"{span}/{way}", {}) for way in ("forward", *WAYS)}
        times = [f"{row['seconds']:.1f} s" if row else "" for row in found.values()]
        lines.append(f"| {span:,} | {' | '.join(times)} | {found['flash-trace']['memory']:.0f} MiB |")
    return "\n".join(lines)


PEOPLE = ("Anna", "Tom", "Mary", "John", "Kate", "Paul", "Emma", "Luke")
CITIES = ("Paris", "Berlin", "Madrid", "Rome", "Vienna", "London", "Athens", "Dublin", "Tokyo", "Lima")


def recall(directory: str, gguf: str | None, questions: int = 24) -> None:
    """Print how often the answered city scores highest: by the row that reads it, the one that predicts it, others."""
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=gguf)
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=gguf, dtype=torch.float32).eval()
    draw, found, right = (
        random.Random(0),
        dict.fromkeys(("reading", "predicting", "attn-lrp", "gradient-x-input"), 0),
        0,
    )
    for _ in range(questions):
        people, cities = draw.sample(PEOPLE, 5), draw.sample(CITIES, 5)
        who = draw.randrange(5)
        told = " ".join(f"{a} lives in {b}." for a, b in zip(people, cities, strict=True))
        asked = f"{told} Question: where does {people[who]} live? Answer: {people[who]} lives in"
        ids = tokenizer(asked, return_tensors="pt").input_ids
        at = ids.shape[1]
        with torch.no_grad():
            said = int(model(ids).logits[0, -1].argmax())
        ids = torch.cat([ids, torch.tensor([[said]])], 1)
        words = [tokenizer.decode([i]).strip() for i in ids[0].tolist()]
        places = [i for i, word in enumerate(words[:at]) if word in cities]
        right += words[at] == cities[who]
        for way in found:
            if way in whence.list_methods():
                given: dict[str, Any] = {"method": way, "target": whence.At(at - 1, said)}
            else:
                given = {"method": "flash-trace", "span": (at, at + 1) if way == "reading" else (at - 1, at)}
            scores = whence.explain(model, {"input_ids": ids}, **given).scores[0].tolist()
            found[way] += words[max(places, key=scores.__getitem__)] == words[at]
    print(f"{right} of {questions} answers are right")
    for way, hits in found.items():
        print(f"{way:<18}{hits:>3} of {questions}")


def main() -> None:
    """Measure, and print the tables of ``docs/spans.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", nargs="+", type=int, default=[1, 10, 100, 1000, 3000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", metavar="DIRECTORY", help="ask a language model instead")
    parser.add_argument("--gguf", metavar="FILE", help="the file of the model's weights, if it is one of these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model:
        recall(options.model, options.gguf)
        return
    made = Measurements("spans")
    measure(made, options.spans, options.repeats)
    print(table(made))


if __name__ == "__main__":
    main()
