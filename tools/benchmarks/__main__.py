"""``python -m tools.benchmarks [--only costs scaling length page dataset] [--report]``: measure, then write the page.

What was measured stays in ``tools/benchmarks/measured``. A run that was interrupted goes on where it stopped, on the
same day and commit; what is from another day or commit is measured anew. With ``--report`` nothing is measured.
``--into DIRECTORY`` writes measurements and page there, for a trial. For the comparison with other libraries see
``python -m tools.benchmarks.peers``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import whence
from tools.benchmarks import costs, job, length, page, scaling
from tools.benchmarks.measurements import DIRECTORY, Measurements
from tools.benchmarks.models import MODELS
from tools.benchmarks.report import write

PARTS = ("costs", "scaling", "length", "page", "job")


def main() -> None:
    """Measure what is asked for, and write ``docs/performance.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(costs.BATCHES))
    parser.add_argument("--methods", nargs="+", default=sorted(whence.list_methods()))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=job.TEXTS, help="of `whence run`")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write measurements and page here, not to docs")
    parser.add_argument("--report", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    directory = options.into or DIRECTORY
    for part in () if options.report else options.only:
        made = Measurements(part, directory)
        made.drop_outdated()
        if part == "costs":
            costs.measure(made, options.models, options.batches, options.methods, options.repeats)
        elif part == "scaling":
            scaling.measure(made, min(options.repeats, 3))
        elif part == "length":
            length.measure(made)
        elif part == "page":
            page.measure(made)
        else:
            job.measure(made, options.texts)
    print(write(directory, options.into))


if __name__ == "__main__":
    main()
