"""The web application: the list of jobs, a job live, two jobs compared, and changes of a running job's windows."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import attrs
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sm_profiler.config import load_profile
from sm_profiler.config.profile import COLLECTORS
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.formatting import shorten
from sm_profiler.jobs.finding import local_folder
from sm_profiler.printable import printable
from sm_profiler.render.page import Link, page_policy
from sm_profiler.report.compare import compare, render_comparison
from sm_profiler.report.report_json import to_json
from sm_profiler.serve.fleet_page import Facts, FleetPage, policy_of
from sm_profiler.serve.jobs import Found, Jobs, TooManyJobsError
from sm_profiler.serve.listing import FILTERS, SORTS, Listed, Query, Row, row_of, sparks
from sm_profiler.serve.pages import FLEET, JOBS, POLICY, links_of, render, render_page, state_line
from sm_profiler.serve.server import Guard, refuse
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.source.opening import is_account, is_job_name, split_account
from sm_profiler.storage import LocalStorage

MAX_WAITING = 100  # requests at a time that wait for news; others are answered at once
FOLLOWED_IN_LIST = 8  # jobs that the list of jobs reads, for their verdicts and step times; ended jobs singly
LOOK_S = 0.2  # between two looks at a job's version
WAIT_S = 10.0  # for news, then the browser asks again
MAX_VERSION = 40  # characters
CONFIG_FILE = "profilerconfig.json"
MAX_CONFIG_BYTES = 1 << 20
KINDS = {"detailed": "Operators (the framework's profiler)", "dataloader": "Data loader", "python": "Python functions"}
MAX_STEP = 10**9
MAX_STEPS = 1000  # of a window; each slows the training down
_PLACE = ("StartStep", "NumSteps", "StartTimeInSecSinceEpoch", "DurationInSeconds")
_KEYS = ("S3OutputPath", "ProfilingIntervalInMilliseconds", "ProfilingParameters", "DisableProfiler")


@attrs.frozen
class Window:
    """A requested window.

    Attributes:
        kind: one of KINDS.
        start: its first step.
        steps: its length.
    """

    kind: str
    start: int
    steps: int

    @classmethod
    def parse(cls, form: Mapping[str, str]) -> Window:
        kind = form.get("kind", "")
        if kind not in KINDS:
            raise ConfigError("choose what to record")
        numbers = []
        for name, label, low, high in (
            ("start", "first step", 0, MAX_STEP),
            ("steps", "number of steps", 1, MAX_STEPS),
        ):
            text = form.get(name, "").strip()
            if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
                raise ConfigError(f"{label}: give a whole number from {low} to {high:,}")
            numbers.append(int(text))
        return cls(kind, *numbers)

    def within(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a ProfilerConfig with this window in place of that of its kind."""
        given = request.get("ProfilingParameters")
        parameters = dict(given) if isinstance(given, Mapping) else {}
        wire = COLLECTORS[self.kind].wire
        try:
            found = json.loads(parameters.get(wire) or "{}")
        except (ValueError, TypeError, RecursionError):
            found = {}
        kept = {key: value for key, value in found.items() if key not in _PLACE} if isinstance(found, dict) else {}
        parameters[wire] = json.dumps({"StartStep": self.start, "NumSteps": self.steps, **kept})
        changed = {**request, "ProfilingParameters": parameters}
        problems = [problem for problem in load_profile(json.dumps(changed)).warnings if wire in problem]
        if problems:
            raise ConfigError(problems[0])
        return changed


@attrs.frozen
class FileTarget:
    """A file that the hook reads again when it changes."""

    path: Path

    @property
    def shown(self) -> str:
        """Name of what is changed."""
        return f"the file {self.path}"

    def change(self, window: Window) -> None:
        """Change it, atomically."""
        storage = LocalStorage(self.path.parent)
        try:
            request = json.loads(storage.read(self.path.name, end=MAX_CONFIG_BYTES))
        except (ValueError, RecursionError):
            raise ConfigError(f"{self.path} is not JSON") from None
        if not isinstance(request, dict):
            raise ConfigError(f"{self.path} must contain a JSON object")
        storage.write(self.path.name, json.dumps(window.within(request), indent=1).encode())


@attrs.frozen
class JobTarget:
    """A training job of SageMaker."""

    name: str
    client: Any = None
    region: str | None = None

    @property
    def shown(self) -> str:
        """Name of what is changed."""
        return f"the training job {self.name}, by UpdateTrainingJob"

    def change(self, window: Window) -> None:
        """Send UpdateTrainingJob."""
        from sm_profiler.source.job import describe  # loading boto3 takes a third of a second
        from sm_profiler.storage.s3 import REQUEST_ERRORS, create_api_client, reason_of

        client = self.client or create_api_client("sagemaker", region=self.region)
        job = describe(self.name, client=client)
        if job.get("TrainingJobStatus") != "InProgress":
            raise SourceError(f"{self.name} is not running")
        request = window.within(job.get("ProfilerConfig") or {})
        update = {key: request[key] for key in _KEYS if key in request}
        try:
            client.update_training_job(TrainingJobName=self.name, ProfilerConfig=update)
        except REQUEST_ERRORS as error:
            raise SourceError(f"UpdateTrainingJob: {reason_of(error)}") from error


def target_of(where: str, name: str) -> FileTarget | JobTarget:
    """Return where a job's windows can be changed."""
    folder = local_folder(where)
    if folder is None:
        if not is_job_name(name):
            raise ConfigError(f"{name} is not the name of a training job")
        return JobTarget(name, region=split_account(where)[0] if is_account(where) else None)
    for path in (folder / CONFIG_FILE, folder.resolve().parent / CONFIG_FILE):
        if path.is_file() and not path.is_symlink():
            return FileTarget(path)
    raise ConfigError(f"there is no {CONFIG_FILE} next to this profile, so its hook reads no file again")


@attrs.define(eq=False)
class Site:
    """The pages.

    Attributes:
        jobs: the jobs that are shown.
        allow_changes: show and accept changes of a job's windows.
        surveys: make the fleet's page as soon as the list is requested: it names users, machines and costs.
        boot: distinguishes versions of this process from those before a restart.
        pause: of requests that wait for news; for tests.
    """

    jobs: Jobs
    allow_changes: bool = False
    surveys: bool = False
    boot: str = attrs.field(factory=lambda: secrets.token_hex(4))
    pause: Callable[[float], Any] = asyncio.sleep
    target_of: Callable[[str, str], Any] = target_of
    fleet_page: FleetPage = attrs.field(init=False)
    _waiting: int = attrs.field(default=0, init=False)
    _csrf: str = attrs.field(factory=secrets.token_urlsafe, init=False)

    def __attrs_post_init__(self) -> None:
        self.fleet_page = FleetPage(self.jobs.sources, self.jobs.listing, self.jobs.prices, self.jobs.listed)

    def routes(self) -> list[Route]:
        return [
            Route("/", self.home),
            Route("/list", self.list_of_jobs),
            Route("/compare", self.compare),
            Route("/fleet", self.fleet),
            Route("/fleet.json", self.fleet_json),
            Route("/jobs/{id}", self.job),
            Route("/jobs/{id}/updates", self.updates),
            Route("/jobs/{id}/report.json", self.report_json),
            Route("/jobs/{id}/windows", self.windows, methods=["GET", "POST"]),
        ]

    def home(self, request: Request) -> Response:
        """Answer with the list of jobs."""
        rows, listed = self._rows(request)
        links = self._links(request, here=JOBS)
        return page(
            "home.html",
            title="Jobs",
            refresh=True,
            list=self._list(listed),
            listed=listed,
            choices=listed.query.choices(rows),
            sorts=SORTS,
            links=links,
        )

    def _links(self, request: Request, *more: Link, here: str = "") -> Sequence[Link]:
        has_fleet = self.jobs.count > 1 and bool(self.fleet_page.places())  # as far as the jobs have been listed
        return links_of(request.scope["path"], *more, fleet=has_fleet, here=here)

    def list_of_jobs(self, request: Request) -> Response:
        """Answer with the list's HTML."""
        return HTMLResponse(self._list(self._rows(request)[1]))

    def _rows(self, request: Request) -> tuple[list[Row], Listed]:
        """Return the rows of all jobs, and those that the address asks for."""
        jobs = {job.id: job for job in self.jobs.listing()}
        if self.surveys and len(jobs) > 1:
            self.fleet_page.make()
        surveying = self._surveying
        facts = {identifier: self._facts(job) for identifier, job in jobs.items()}

        def row(identifier: str) -> Row:
            job = jobs[identifier]
            live = self.jobs.watched(job)
            being_read = (live is not None and live.is_followed) or (surveying and job.saved is None)
            return row_of(job, self.jobs.current(job), facts[identifier], being_read=being_read)

        rows = [row(identifier) for identifier in jobs]
        listed = Listed.of(Query.parse(request.query_params), rows)
        for job in self._followed([jobs[one.id] for one in listed.rows], facts):
            if (live := self.jobs.live_or_none(job)) is not None:
                live.watch()
        shown = [attrs.evolve(row(one.id), spark=self._spark(jobs[one.id])) for one in listed.rows]
        return rows, attrs.evolve(listed, rows=shown)

    @property
    def _surveying(self) -> bool:
        """True while the first pass over all jobs is at work."""
        return self.surveys and self.jobs.count > 1 and self.fleet_page.facts() is None and not self.fleet_page.error

    def _facts(self, job: Found) -> Facts:
        return (self.fleet_page.facts() or {}).get(job.id, Facts()).as_of(job)

    def _line(self, job: Found, snapshot: Snapshot) -> str:
        """Return the state of a job, with the end that the account or the scheduler has, and the reason if its page lacks it."""
        facts = self._facts(job) if job.state == "ended" else Facts()
        line = state_line(snapshot, job.status or facts.end)
        return f"{line}: {facts.failure}" if facts.failure and line == facts.end and not snapshot.end else line

    def _spark(self, job: Found) -> Markup:
        snapshot = self.jobs.current(job)
        return sparks(snapshot) if snapshot is not None else Markup()

    def _list(self, listed: Listed) -> Any:
        surveying = self._surveying
        pending = listed.pending if self.surveys and listed.total > 1 and not surveying else 0
        error = self.fleet_page.error
        problems = [*self.jobs.problems, *([f"Users, machines and costs cannot be read: {error}"] if error else [])]
        content = {"listed": listed, "problems": problems, "surveying": surveying, "pending": pending}
        content |= {"choosers": ["q", *FILTERS], "sorts": list(SORTS)}
        return Markup(render("list.html", **content))  # noqa: S704 - our own template

    def _followed(self, jobs: list[Found], facts: Mapping[str, Facts]) -> list[Found]:
        """Return those of the jobs that the list follows: that run, and at most one ended job whose verdict is missing."""
        running = [job for job in jobs if job.state != "ended" or self.jobs.count == 1][:FOLLOWED_IN_LIST]
        ended = [
            job
            for job in jobs
            if job.state == "ended" and job.saved is None and not facts[job.id].is_judged and job not in running
        ]
        for job in ended[: FOLLOWED_IN_LIST - len(running)]:
            snapshot = self.jobs.current(job)
            if snapshot is None or not snapshot.version or snapshot.state == "reading":
                return [*running, job]
        return running

    def job(self, request: Request) -> Response:
        """Answer with what is known of a job at once; the rest comes as it is read."""
        found = self.jobs.known(request.path_params["id"])
        if found is None:
            return self._missing(request)
        snapshot = self.jobs.live(found).watch()
        changes = self.allow_changes and snapshot.state != "ended"
        links = [Link("report.json", f"{found.id}/report.json")]
        links += [Link("Change its windows", f"{found.id}/windows")] if changes else []
        return page(
            "job.html",
            title=found.name,
            refresh=snapshot.state != "ended",
            id=found.id,
            name=found.label,
            where=found.where,
            saved=found.saved,
            state=snapshot.state,
            line=self._line(found, snapshot),
            version_key=self._key(snapshot),
            data_at=snapshot.data_at,
            parts={key: Markup(part.html) for key, part in snapshot.parts.items()},  # noqa: S704 - rendered by our templates
            links=self._links(request, *links),
        )

    async def updates(self, request: Request) -> Response:
        """Answer with the parts that changed since a version, as soon as there are any."""
        since = request.query_params.get("since", "")
        if len(since) > MAX_VERSION:
            return JSONResponse({"error": "no such version"}, 400)
        found = await run_in_threadpool(self.jobs.known, request.path_params["id"])
        if found is None:
            return JSONResponse({"error": "no such job"}, 404)
        live = self.jobs.live(found)
        snapshot, waited = live.watch(), 0.0 if self._waiting < MAX_WAITING else WAIT_S
        self._waiting += 1
        try:
            while self._key(snapshot) == since and snapshot.state != "ended" and waited < WAIT_S:
                await self.pause(LOOK_S)
                snapshot, waited = live.watch(), waited + LOOK_S
        finally:
            self._waiting -= 1
        return JSONResponse(self._news(snapshot, since, await run_in_threadpool(self._line, found, snapshot)))

    def report_json(self, request: Request) -> Response:
        found = self.jobs.known(request.path_params["id"])
        report = self.jobs.live(found).watch().whole_report() if found else None
        if report is None:
            return JSONResponse({"error": "no such job" if found is None else "nothing has been read yet"}, 404)
        return Response(to_json(report), media_type="application/json")

    def compare(self, request: Request) -> Response:
        """Answer with two jobs side by side, as far as they have been read."""
        found = [self.jobs.known(request.query_params.get(name, "")) for name in ("a", "b")]
        reports, links = [], list[Link]()
        for label, job in zip(("Before", "After"), found, strict=True):
            if job is None:
                return self._missing(request)
            links.append(Link(f"{label}: {shorten(job.name, 40)}", f"jobs/{job.id}"))
            snapshot = self.jobs.live(job).watch()
            report = snapshot.whole_report()
            if report is None:
                text = f"{job.name}: {state_line(snapshot)}. This page shows the comparison as soon as both jobs have data."
                return page(
                    "message.html", 202, title="Two runs compared", refresh=True, text=text, links=self._links(request)
                )
            reports.append(report)
        policy = page_policy() + "; frame-ancestors 'self'"
        html = render_comparison(compare(*reports), self._links(request, *links))
        return HTMLResponse(html, headers={"content-security-policy": policy})

    def fleet(self, request: Request) -> Response:
        """Answer with the fleet's page of all jobs, once it is made."""
        html, error = self.fleet_page.page()
        if html:
            headers = {"content-security-policy": f"{policy_of(html)}; frame-ancestors 'self'"}
            return HTMLResponse(html, headers=headers)
        text = (
            f"The jobs cannot be read: {error}"
            if error
            else "The jobs are being read. Once that is done, this page shows what they cost and how much of it is lost."
        )
        links = self._links(request, here=FLEET)
        return page("message.html", 502 if error else 202, title=FLEET, refresh=not error, text=text, links=links)

    def fleet_json(self, _: Request) -> Response:
        """Answer with the numbers of the fleet's page."""
        found = self.fleet_page.numbers()
        if not found:
            return JSONResponse({"error": "the jobs have not been read yet"}, 404)
        return Response(found, media_type="application/json")

    async def windows(self, request: Request) -> Response:
        """Answer with the form that changes a job's windows, ask again, and change them."""
        if not self.allow_changes:
            return refuse(403, "Changes are off: start serve with --allow-changes.")
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        if request.method == "POST" and not secrets.compare_digest(form.get("csrf", "").encode(), self._csrf.encode()):
            return refuse(403, "This form is from before the server was restarted: open it again.")
        return await run_in_threadpool(self._windows, request, form if request.method == "POST" else None)

    def _windows(self, request: Request, form: dict[str, str] | None) -> Response:
        found = self.jobs.known(request.path_params["id"])
        if found is None:
            return self._missing(request)
        links = self._links(request, Link("This job", f"../{found.id}"))
        content: dict[str, Any] = {
            "problem": "",
            "window": None,
            "shown": "",
            "start": next_step(self.jobs.live(found).watch()),
        }
        status = 200
        try:
            target = self.target_of(found.where, found.name)
            content["shown"] = target.shown
            if form is not None:
                window = Window.parse(form)
                content["window"] = window
                if form.get("sure") == "yes":
                    target.change(window)
                    text = "The window is changed. The hook takes it over within seconds; UpdateTrainingJob takes a minute."
                    return page("message.html", title=found.name, text=text, links=links)
        except ProfilerError as error:
            content |= {"problem": printable(error), "window": None}
            status = 400
        return page(
            "windows.html",
            status,
            title="Change windows",
            refresh=False,
            id=found.id,
            name=found.name,
            kinds=KINDS,
            csrf=self._csrf,
            links=links,
            **content,
        )

    def _missing(self, request: Request) -> Response:
        """Return the answer to an unknown job."""
        text = "It is not among the jobs of this server."
        return page("message.html", 404, title="No such job", refresh=False, text=text, links=self._links(request))

    def _key(self, snapshot: Snapshot) -> str:
        return f"{self.boot}:{snapshot.version}"

    def _news(self, snapshot: Snapshot, since: str, line: str) -> dict[str, Any]:
        """Return state and changed parts; all of them for a version of another process."""
        boot, _, number = since.partition(":")
        version = int(number) if boot == self.boot and number.isascii() and number.isdigit() else -1
        return {
            "version": self._key(snapshot),
            "state": snapshot.state,
            "line": line,
            "data_at": snapshot.data_at,
            "order": list(snapshot.parts),
            "parts": snapshot.parts_since(version),
        }


def next_step(snapshot: Snapshot) -> int:
    """Return a step that is still to come, as a proposal."""
    if snapshot.report is None:
        return 100
    latest = max((int(rank.steps.number.max()) for rank in snapshot.report.metrics.ranks if len(rank.steps)), default=0)
    return (latest // 100 + 2) * 100


def page(template: str, status: int = 200, **content: Any) -> Response:
    """Return a page with the policy that allows its own style and script."""
    nonce = secrets.token_urlsafe(16)
    headers = {"content-security-policy": POLICY.format(nonce=nonce)}
    return HTMLResponse(render_page(template, nonce, **content), status, headers)


def too_many(request: Request, error: Exception) -> Response:
    """Return the answer if no further job can be followed."""
    links = links_of(request.scope["path"], fleet=False)
    return page("message.html", 503, title="Too many jobs", refresh=False, text=str(error), links=links)


def create_app(
    jobs: Jobs,
    *,
    base: str = "",
    token: str | None = None,
    port: int = 0,
    allow_changes: bool = False,
    surveys: bool = False,
) -> Guard:
    """Return the application behind its guard."""
    site = Site(jobs, allow_changes, surveys)
    app = Starlette(routes=site.routes(), exception_handlers={TooManyJobsError: too_many})
    return Guard(app, base, token, port)
