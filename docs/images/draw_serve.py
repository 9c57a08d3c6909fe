"""Draws the pictures of the live page: python docs/images/draw_serve.py [local|jobs] (needs Chromium and playwright)."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Playwright, expect, sync_playwright

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # for the package `tests`

from sm_profiler.local import LocalSageMaker
from tests.support.jobs import make_job
from tests.support.local import start_job
from tests.support.proxy import Proxy, served

HOSTILE = "<img src=x onerror=alert(1)>'\"{{7*7}}\u202etxt.exe"
JOBS = {
    "bert-finetune-fp16": ("--scenario", "healthy", "--gpus", "2"),
    "llm-pretrain-8-nodes": ("--scenario", "step-outliers", "--nodes", "8", "--gpus", "4", "--cpus", "32"),
    "resnet50-imagenet": ("--scenario", "dataloader-slow", "--gpus", "4"),
    HOSTILE: ("--scenario", "dataloader-slow", "--gpus", "1"),
}
PICTURES = (
    ("serve-light.png", "resnet50-imagenet", "light", 1100, 980),
    ("serve-dark.png", "", "dark", 1100, 720),
    ("serve-phone.png", "resnet50-imagenet", "light", 390, 844),
    ("serve-nodes.png", "llm-pretrain-8-nodes", "dark", 1100, 1000),
    ("serve-hostile.png", HOSTILE, "light", 1100, 720),
)
SECTIONS = {"serve-nodes.png": "#heat"}  # shown at the top
MINUTES = 6


def draw_local(play: Playwright) -> None:
    """Draw a job of the local endpoint while it runs, behind a proxy."""
    with tempfile.TemporaryDirectory() as scratch, LocalSageMaker(folder=f"{scratch}/endpoint") as local:
        os.environ.update(local.environment)
        stop = Path(scratch, "stop")
        start_job(local, "digits-from-the-endpoint", stop)
        with served(f"account:{local.environment['AWS_REGION']}") as port:
            proxy = Proxy(target=port)
            chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = chromium.new_page(color_scheme="light", viewport={"width": 1100, "height": 720})
            page.goto(f"{proxy.url}?token=known")
            page.get_by_role("link", name="digits").click(timeout=240_000)
            page.locator("#log", has_text="epoch 8").wait_for(timeout=240_000)
            page.locator("#verdict .badge", has_text="Waiting for data").wait_for(timeout=240_000)
            page.screenshot(path=HERE / "serve-local.png")
            chromium.close()
            proxy.kill()
        stop.touch()


if sys.argv[1:] != ["jobs"]:
    with sync_playwright() as playwright:
        draw_local(playwright)
if sys.argv[1:] == ["local"]:
    sys.exit()
with tempfile.TemporaryDirectory() as scratch:
    for name, options in JOBS.items():
        begin = int(time.time()) - 60 * MINUTES - 5
        timing = ("--minutes", MINUTES, "--start-epoch", begin, "--no-end-marker")
        make_job(Path(scratch, name, "profiler-output"), *timing, *options)
    serve = [sys.executable, "-m", "sm_profiler", "serve", scratch, "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as play:
        try:
            address = server.stdout.readline().strip()
            chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            for file, name, scheme, width, height in PICTURES:
                page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
                page.goto(address)
                page.locator(".badge").nth(len(JOBS) - 1).wait_for(timeout=120_000)
                if name:
                    page.get_by_role("link", name=name[:8]).click()
                    page.locator("#heat").wait_for(timeout=120_000)
                    page.locator("#state", has_text="running").wait_for(timeout=120_000)
                else:
                    expect(page.get_by_text("reading what is there")).to_have_count(0, timeout=120_000)
                if file in SECTIONS:
                    page.locator(SECTIONS[file]).evaluate("one => one.scrollIntoView({behavior: 'instant'})")
                    page.wait_for_timeout(500)
                page.screenshot(path=HERE / file)
            chromium.close()
        finally:
            server.terminate()
