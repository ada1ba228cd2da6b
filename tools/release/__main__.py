"""``python -m tools.release``: build wheel and sdist into dist/, look into them, try each in a clean environment."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .archive import faults, told
from .smoke import smoke
from .version import changes, disagreements, tags, written

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Stop at the first thing that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--no-install", action="store_true", help="build and look, but make no environments")
    arguments = parser.parse_args()
    version = written(ROOT)
    _refuse(disagreements(version, tags(ROOT), changes(ROOT)))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", "dist"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    archives = sorted((ROOT / "dist").iterdir())
    for archive in archives:
        _refuse(faults(archive))
        print(told(archive), flush=True)
    for archive in [] if arguments.no_install else archives:
        begin = time.monotonic()
        smoke(ROOT, archive, version)
        print(
            f"{archive.name} installs, explains and runs its demonstration ({time.monotonic() - begin:.0f} s)",
            flush=True,
        )


def _refuse(found: list[str]) -> None:
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
