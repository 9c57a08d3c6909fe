"""Draws the pictures in this folder: python docs/images/draw.py [report|fleet] (needs Chromium and playwright)."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # for the packages `benchmarks` and `tests`

from benchmarks.fleet import write_fleet
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.page import render_html as render_fleet
from sm_profiler.render.page import render_html
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.jobs import make_job
from tests.support.reports import gpu_samples, report_from, training

NASTY = "</script><img src=x onerror=alert(1)>"


def job(folder: Path, name: str, *options: str) -> str:
    """The page of a synthetic job."""
    return render_html(build_report(open_source(make_job(folder / name, *options), cache=False)))


def hostile() -> str:
    """A job with names that try to break out, one of them very long, and 512 GPUs."""
    rows = training(300, node=NASTY) + training(300, node="n" * 5000, forward=0.004)
    samples = [row for number in range(512) for row in gpu_samples(50 + number % 40, 3, name=f"gpu{number}")]
    rules = {
        "CPUBottleneck": {
            "RuleTriggered": 3,
            "Violations": 5,
            "Details": {"phase": {NASTY: 60.0, "x" * 100_000: 40.0}},
            "Datapoints": 9,
            "RuleParameters": NASTY,
        }
    }
    return render_html(report_from(rows, samples, rules, name=NASTY * 3))


Page = tuple[str, int, int, str]  # HTML, width, height, colour scheme


def fleet(folder: Path, count: int) -> str:
    """The page of a made-up fleet."""
    jobs = folder / f"fleet-{count}"
    write_fleet(jobs, count)
    return render_fleet(build_fleet([str(jobs)], progress=False), jobs)


def fleets(folder: Path) -> dict[str, Page]:
    """Pages of fleets of three sizes."""
    return {
        "fleet-light": (fleet(folder, 300), 1200, 1500, "light"),
        "fleet-dark": (fleet(folder, 3), 1200, 1500, "dark"),
        "fleet-phone": (fleet(folder, 10_000), 390, 1500, "light"),
    }


def reports(folder: Path) -> dict[str, Page]:
    """Pages of jobs."""
    return {
        "report-light": (
            job(folder, "resnet-training", "--scenario", "dataloader-slow", "--gpus", "4", "--cpus", "16"),
            1200,
            1500,
            "light",
        ),
        "report-dark": (
            job(folder, "bert-finetuning", "--scenario", "step-outliers", "--gpus", "2"),
            1200,
            1500,
            "dark",
        ),
        "report-phone": (
            job(folder, "fluctuating", "--scenario", "cpu-bottleneck", "--gpus", "2", "--minutes", "20"),
            390,
            1500,
            "light",
        ),
        "report-cpu-only": (job(folder, "cpu-training", "--scenario", "cpu-only", "--cpus", "8"), 1200, 1500, "light"),
        "report-day-long": (
            job(
                folder,
                "day-long",
                "--minutes",
                "1440",
                "--steps-per-second",
                "2",
                "--interval-ms",
                "5000",
                "--gpus",
                "1",
                "--scenario",
                "dataloader-slow",
            ),
            1200,
            1500,
            "light",
        ),
        "report-hostile": (hostile(), 1200, 1900, "light"),
    }


def main() -> None:
    """Draw them all."""
    wanted = sys.argv[1:] or ["report", "fleet"]
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        folder = Path(temporary)
        pages = {**(fleets(folder) if "fleet" in wanted else {}), **(reports(folder) if "report" in wanted else {})}
        chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, (html, width, height, scheme) in pages.items():
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            (folder / f"{name}.html").write_text(html, encoding="utf-8")
            page.goto((folder / f"{name}.html").as_uri())
            page.wait_for_timeout(300)
            page.screenshot(path=str(HERE / f"{name}.png"))
            print(
                name,
                f"{len(html) // 1024} kB page",
                f"{(HERE / f'{name}.png').stat().st_size // 1024} kB picture",
            )
        chromium.close()


if __name__ == "__main__":
    main()
