import os
import shutil

import hypothesis
import pytest
import torch

# before transformers is imported anywhere: nothing is downloaded, and neither bars nor notes are printed
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")

torch.set_num_threads(1)

hypothesis.settings.register_profile("whence", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("whence")


@pytest.fixture
def rows_of_small_models_are_left_out(monkeypatch):
    """The models of the tests are smaller than those for which looking for rows of zeros pays."""
    monkeypatch.setattr("whence.tracing.sparse_rows.LEAST", 0)


NAMES = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()
