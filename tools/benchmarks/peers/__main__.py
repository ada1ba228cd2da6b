"""Compare Whence with other libraries, and write ``benchmarks/measured/peers.json``.

Model, input and target are the same for the peer, for ``whence.explain``, and for a replay by ``whence.compile``. Times
are multiples of one plain forward + backward to the input, run before and after each call. Peers that cannot be
installed together are run one environment after the other (``--only``); the file keeps the rows of all.

    python -m tools.benchmarks.peers [--only captum lxt] [--case bert decoder] [--repeats 15]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.benchmarks.peers import table
from tools.benchmarks.peers.cases import CASES
from tools.benchmarks.peers.run import PEERS, alone


def main() -> int:
    """Measure, print and save; 1 if numbers that must agree do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PEERS), choices=list(PEERS), metavar="PEER")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--case", nargs="+", default=list(CASES), choices=list(CASES), metavar="MODEL", help="of these models"
    )
    parser.add_argument("--into", type=Path, default=table.FILE, metavar="FILE", help="where rows are written")
    options = parser.parse_args()
    rows: list[table.Row] = []
    for peer in options.only:
        for number, comparison in enumerate(PEERS[peer]):
            if comparison.case in options.case:
                rows.append(alone(peer, number, options.repeats))
                print(table.line(table.cells(rows[-1])), flush=True)
    table.save(rows, options.only, options.into)
    for row in table.behind(rows):
        print(f"Behind: {row['peer']}, {row['method']}, {row['case']}: {row['time']}, {row['memory']}", file=sys.stderr)
    wrong = table.disagreeing(rows)
    for row in wrong:
        print(f"Disagrees: {row['peer']}, {row['method']}, {row['case']}: {row['difference']:.1e}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
