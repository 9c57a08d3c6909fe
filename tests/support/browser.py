"""A page in headless Chromium, for the tests of all pages."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def page_of(html, tmp_path, **options):
    """Open the page in headless Chromium; yield it with its requests, errors and warnings."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    seen = []
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(**options)
        page.on("request", lambda request: seen.append(f"request {request.url}"))
        page.on("pageerror", lambda error: seen.append(f"error {error}"))
        page.on(
            "console",
            lambda message: seen.append(f"console {message.text}") if message.type in ("error", "warning") else None,
        )
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.goto(path.as_uri())
        page.wait_for_timeout(200)
        yield page, [line for line in seen if line not in (f"request {path.as_uri()}", "request data:,")]
        chromium.close()
