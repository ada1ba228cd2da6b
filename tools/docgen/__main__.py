"""``python -m tools.docgen``: make the generated parts of the pages anew; with ``--notebooks`` run these, too."""

from __future__ import annotations

import argparse

from tools.docgen import methods, overhead, peers, rooms
from tools.docgen.notebook import NOTEBOOKS, written


def main() -> None:
    """Write what is not current."""
    parser = argparse.ArgumentParser(prog="python -m tools.docgen", description=__doc__)
    parser.add_argument("--notebooks", action="store_true", help="run the notebooks and keep what they show")
    for path, text in {**methods.pages(), **overhead.pages(), **peers.pages(), **rooms.pages()}.items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name} made anew")
    if parser.parse_args().notebooks:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            written(path)
            print(f"{path.name} run")


if __name__ == "__main__":
    main()
