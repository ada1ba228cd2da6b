"""How long attention flow takes: ``python benchmarks/flow.py [layers] [tokens]`` (12 layers of 128 tokens)."""

from __future__ import annotations

import sys
import time

import numpy as np

from whence.methods.attention_flow import flows


def main(layers: int = 12, tokens: int = 128) -> None:
    capacities = np.random.default_rng(0).dirichlet(np.full(tokens, 0.3), (layers, tokens))
    start = time.perf_counter()
    flows((capacities + np.eye(tokens)) / 2, 0)
    print(f"{layers} layers of {tokens} tokens: {time.perf_counter() - start:.1f} s for all tokens of one row")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
