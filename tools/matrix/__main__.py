"""``python -m tools.matrix``: every combination that can be had here; writes docs/compatibility.md."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from .cell import ROOT, Found, cells
from .page import page


def main() -> None:
    """Run the cells that are asked for; those that were run before keep their result."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("only", nargs="*", help="cells by key (3.11-pinned-oldest); all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "matrix", help="what was found so far")
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()), help="where environments are made")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        if arguments.only and cell.key not in arguments.only:
            continue
        print(cell.name, flush=True)
        found = cell.run(arguments.venvs / f"whence-matrix-{cell.key}")
        (arguments.out / f"{cell.key}.json").write_text(json.dumps(found.as_dict()))
        print(f"  {found.versions} {found.passed} passed, {found.failed} failed {found.why[:300]}", flush=True)
    paths = [(cell, arguments.out / f"{cell.key}.json") for cell in cells()]
    results = [
        Found(**json.loads(path.read_text())) if path.exists() else Found(cell.name, {}, 0, 0, 0.0, "left out")
        for cell, path in paths
    ]
    (ROOT / "docs" / "compatibility.md").write_text(page(results))
    failed = [one.name for one in results if one.failed]
    if failed:
        raise SystemExit(f"Tests fail with {'; '.join(failed)}: see docs/compatibility.md.")


if __name__ == "__main__":
    main()
