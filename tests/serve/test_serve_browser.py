"""The live page in headless Chromium, behind a proxy under a path prefix, while a job writes its files."""

import shutil

import pytest

from sm_profiler.monitor.run_state import write_state
from tests.support.proxy import BASE, LONG_MS, Proxy, chromium, served
from tests.support.serving import copy_files, data_files, end, make_job, until

NASTY = "<img src=x onerror=alert(1)>"

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def proxy():
    with Proxy() as started:
        yield started
        started.drop()
        started.shutdown()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes", "3", "--scenario", "dataloader-slow")


def test_a_job_is_watched_from_start_to_end_behind_a_proxy(job, proxy, tmp_path):
    folder, files = tmp_path / "jobs" / NASTY, data_files(job)
    (folder / "system").mkdir(parents=True)
    first, second = len(files) // 2, len(files) * 3 // 4  # each part ends a minute later than the one before
    with chromium() as page:
        with served(tmp_path / "jobs") as port:
            proxy.target = port
            page.goto(f"{proxy.url}?token=known")
            assert "token" not in page.url
            page.get_by_role("link", name="<img").click()
            page.get_by_text("waiting for the first data").wait_for()
            page.evaluate("window.kept = true")  # a reload would lose it

            copy_files(job, folder, files[:first])
            page.locator("#verdict").wait_for()
            page.locator("#chart svg").first.wait_for()
            page.locator("#state", has_text="running").wait_for()
            length = "JSON.parse(document.getElementById('timeline-data').textContent).length"
            before = page.evaluate(length)

            proxy.drop()
            page.locator("#lost", has_text="cannot be reached").wait_for()
            copy_files(job, folder, files[first:second])
            proxy.down = False
            until(lambda: page.evaluate(f"{length} > {before}"), LONG_MS / 1000)
            page.locator("#lost").wait_for(state="hidden")
            before = page.evaluate(length)

        page.locator("#lost").wait_for()  # the server is gone
        with served(tmp_path / "jobs", port) as again:
            assert again == port
            copy_files(job, folder, files[second:])
            until(lambda: page.evaluate(f"{length} > {before}"), LONG_MS / 1000)
            end(folder)
            page.locator("#state", has_text="ended").wait_for()
            page.locator("#verdict .badge", has_text="Waiting for data").wait_for()
            assert page.evaluate("window.kept")
            assert page.evaluate("location.host") in page.url
            assert page.problems == []
            assert all(path.startswith(BASE) for path in proxy.seen)


def test_a_job_that_ends_without_data_promises_no_report(proxy, tmp_path):
    (tmp_path / "job" / "system").mkdir(parents=True)
    write_state(tmp_path / "job")
    with served(tmp_path) as proxy.target, chromium() as page:
        page.goto(f"{proxy.url}?token=known")
        page.get_by_role("link", name="job", exact=True).click()
        page.get_by_text("No data has been read yet").wait_for()
        write_state(tmp_path / "job", 1)
        page.locator("#state", has_text="recorded nothing").wait_for()
        page.get_by_text("No data has been read yet").wait_for(state="detached")
        assert page.problems == []


def test_a_job_that_is_removed_while_it_is_watched_is_named(job, proxy, tmp_path):
    folder = tmp_path / "jobs" / "gone"
    copy_files(job, folder, data_files(job))
    with chromium() as page, served(tmp_path / "jobs") as port:
        proxy.target = port
        page.goto(f"{proxy.url}?token=known")
        page.get_by_role("link", name="gone").click()
        page.locator("#state", has_text="running").wait_for()
        shutil.rmtree(folder)
        page.locator("#state", has_text="its folder was removed").wait_for()
        proxy.drop()  # the page has to connect anew
        proxy.down = False
        page.locator("#lost", has_text="This job is gone").wait_for()


def test_a_moment_has_an_address_and_what_is_read_stays(job, proxy, tmp_path):
    folder, files = tmp_path / "job", data_files(job)
    copy_files(job, folder, files[: len(files) // 2])
    with served(folder) as proxy.target, chromium() as page:
        page.goto(f"{proxy.url}?token=known")
        link = page.get_by_role("link", name="job", exact=True).get_attribute("href")
        page.goto(f"{proxy.url}{link}#t=10,30")
        page.locator("#chart svg").first.wait_for()
        axis = "document.querySelector('#chart > svg:last-child').textContent"
        shown = page.evaluate(axis)
        page.get_by_role("button", name="Zoom in").click()
        until(lambda: page.evaluate("location.hash === '#t=15.00,25.00'"), LONG_MS / 1000)
        assert page.evaluate(axis) != shown
        zoomed = page.evaluate(axis)
        copy_files(job, folder, files[len(files) // 2 :])
        end(folder)
        page.locator("#state", has_text="ended").wait_for()
        assert page.evaluate(axis) == zoomed
        page.get_by_role("button", name="All: show the whole job").click()
        until(lambda: page.evaluate("location.hash === ''"), LONG_MS / 1000)
        assert page.problems == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 360)])
def test_is_accessible_and_fits(job, proxy, tmp_path, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    copy_files(job, tmp_path / "jobs" / NASTY, data_files(job))
    copy_files(job, tmp_path / "jobs" / "other", data_files(job))
    copy_files(job, tmp_path / "jobs" / ("long-" + 100 * "x"), data_files(job))
    with (
        served(tmp_path / "jobs") as proxy.target,
        chromium(color_scheme=scheme, viewport={"width": width, "height": 800}) as page,
    ):
        page.goto(f"{proxy.url}?token=known")
        for selector in (".badge", "#verdict"):
            page.locator(selector).first.wait_for()
            found = axe.Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if selector == ".badge":
                page.get_by_role("link", name="other").click()
        page.get_by_role("link", name="All jobs").click()
        page.get_by_label("After").select_option(
            label=page.get_by_label("After").locator("option").all_inner_texts()[-1]
        )
        page.get_by_role("button", name="Compare").click()
        page.locator("#verdict-title").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == []


def test_works_without_script(job, proxy, tmp_path):
    copy_files(job, tmp_path / "job", data_files(job))
    end(tmp_path / "job")
    with served(tmp_path / "job") as proxy.target, chromium(java_script_enabled=False) as page:
        page.goto(f"{proxy.url}?token=known")
        page.get_by_role("link", name="job", exact=True).click()
        until(lambda: page.reload() and page.locator("#verdict .badge").count())
        assert page.locator("#verdict .badge").inner_text() == "Waiting for data"


def test_jobs_are_searched_by_keyboard_and_the_choice_is_in_the_address(proxy, tmp_path):
    for number in range(12):
        (tmp_path / f"{'bert' if number % 3 else 'llama'}-{number}" / "system").mkdir(parents=True)
    with served(tmp_path) as proxy.target, chromium() as page:
        page.goto(f"{proxy.url}?token=known")
        page.get_by_label("Search").press_sequentially("llama")
        page.wait_for_url("**/?q=llama")
        page.locator(".count", has_text="4 of 12 jobs").wait_for()
        assert page.evaluate("document.activeElement.name") == "q"
        page.keyboard.press("Enter")
        assert page.locator("#pair select").first.locator("option").count() == 4
        page.locator("[name=sort]").select_option("name")
        page.wait_for_url("**/?q=llama&sort=name")
        page.reload()
        assert page.locator(".jobs h2").all_inner_texts() == ["llama-0", "llama-3", "llama-6", "llama-9"]
        assert page.get_by_label("Search").input_value() == "llama"
        page.get_by_label("Search").fill("nothing like it")
        page.get_by_role("link", name="Show all jobs").click()
        page.locator(".count", has_text="12 jobs.").wait_for()
        assert page.problems == []
