"""``python -m tools.benchmarks [--only costs scaling length] [--repeats 7] [--report]``: measure, then write the page.

What was measured stays in ``tools/benchmarks/measured`` and is not measured again; remove a file there to begin anew.
With ``--report`` nothing is measured. For the comparison with other libraries see ``python -m tools.benchmarks.peers``.
"""

from __future__ import annotations

import argparse

import whence
from tools.benchmarks import costs, length, scaling
from tools.benchmarks.kept import Kept
from tools.benchmarks.models import MODELS
from tools.benchmarks.report import write


def main() -> None:
    """Measure what is asked for, and write ``docs/performance.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["costs", "scaling", "length"], metavar="PART")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(costs.BATCHES))
    parser.add_argument("--methods", nargs="+", default=sorted(whence.list_methods()))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--report", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    parts = [] if options.report else options.only
    if "costs" in parts:
        costs.measure(Kept("costs"), options.models, options.batches, options.methods, options.repeats)
    if "scaling" in parts:
        scaling.measure(Kept("scaling"), min(options.repeats, 3))
    if "length" in parts:
        length.measure(Kept("length"))
    print(write())


if __name__ == "__main__":
    main()
