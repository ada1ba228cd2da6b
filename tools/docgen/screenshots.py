"""Pictures of the web page for the documentation: ``make screenshots``."""

from __future__ import annotations

import io
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from whence.app.log import Log
from whence.app.model_registry import ModelRegistry
from whence.app.serve import application
from whence.app.service import ExplanationService

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "serve"
TEXT = "A gripping and beautifully acted film, even if the ending feels a little too neat."


def explain(page: Page) -> None:
    """Press the button and wait for the answer."""
    page.click("#whence-explain")
    page.wait_for_selector("#whence-shown .whence-view")
    page.wait_for_selector("#whence-explain", state="visible")
    page.wait_for_timeout(500)


def choose(page: Page, what: str, option: str) -> None:
    """Choose something from a list."""
    page.locator(f"#{what} input").click()
    page.locator(f"#{what} input").fill(option)
    page.locator(f"#{what} [role=option]", has_text=option).first.click()
    page.keyboard.press("Escape")


def text(page: Page) -> None:
    """A sentence, one of its words pointed at."""
    page.fill("#whence-text textarea", TEXT)
    explain(page)
    page.locator("#whence-shown .whence-w", has_text="gripping").first.hover()


def compared(page: Page) -> None:
    """Two methods and two answers."""
    page.fill("#whence-text textarea", TEXT)
    choose(page, "whence-methods", "generic-attention")
    choose(page, "whence-target", "positive")
    choose(page, "whence-rival", "negative")
    explain(page)


def picture(page: Page) -> None:
    """A picture and two answers."""
    choose(page, "whence-model", "digits")
    page.locator("#whence-examples img").nth(0).click()
    page.wait_for_selector("#whence-image img")
    explain(page)


def layers(page: Page) -> None:
    """What entered a block, and what heads carried."""
    text(page)
    page.get_by_role("tab", name="Layers").click()
    page.wait_for_timeout(800)


def flipped(page: Page) -> None:
    """The smallest change that flips the answer."""
    text(page)
    page.get_by_role("tab", name="What if?").click()
    page.click("#whence-flip")
    page.wait_for_selector("#whence-flipped del")
    page.wait_for_timeout(500)


def trusted(page: Page) -> None:
    """The ledger, and the trial."""
    text(page)
    page.click("#whence-attempt")
    page.wait_for_selector("#whence-trial svg")


WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
STATES: dict[str, tuple[Callable[[Page], None], dict[str, int], str]] = {
    "text": (text, WIDE, "light"), "compared": (compared, WIDE, "dark"), "picture": (picture, WIDE, "light"),
    "layers": (layers, WIDE, "light"), "flipped": (flipped, WIDE, "dark"), "trusted": (trusted, WIDE, "light"),
    "phone": (text, NARROW, "light"),
}  # fmt: skip


def shoot(browser: Browser, address: str) -> None:
    """A picture of each state."""
    for name, (reach, size, scheme) in STATES.items():
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1.5)  # type: ignore[arg-type]  # a dict
        page = context.new_page()
        page.goto(f"{address}/?__theme={scheme}")
        page.wait_for_selector("#whence-explain")
        page.wait_for_timeout(500)
        reach(page)
        page.screenshot(path=PICTURES / f"{name}.png", full_page=name not in ("text", "phone"))
        print(name, flush=True)
        context.close()


def main() -> None:
    """Serve the shipped models, and photograph the page."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        app = application(ExplanationService(ModelRegistry.shipped(), log=Log(io.StringIO())), folder)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            shoot(browser, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        finally:
            browser.close()
            server.should_exit = True
            thread.join(10)


if __name__ == "__main__":
    main()
