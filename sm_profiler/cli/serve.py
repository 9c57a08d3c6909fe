"""`sm-profiler serve` and `watch`: running jobs in the browser and in the terminal."""

from __future__ import annotations

import difflib
import os
import secrets
import sys
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.fleet import add_jobs, listed_jobs
from sm_profiler.cli.main import DONE, add_prices, add_source, has_colours, newest_run, read_json
from sm_profiler.errors import ProfilerError
from sm_profiler.printable import printable, say
from sm_profiler.settings import SERVE_TOKEN

SERVE_EXAMPLES = """\
examples:
  sm-profiler serve sm-profiler                          all local runs
  sm-profiler serve s3://bucket/training-jobs            all jobs under a prefix
  sm-profiler serve account:us-east-1                    the newest jobs of the account
  sm-profiler serve sm-profiler --base-url /proxy/8899   behind the proxy of JupyterLab or code-server
"""

WATCH_EXAMPLES = """\
examples:
  sm-profiler watch sm-profiler          the newest local run
  sm-profiler watch my-training-job      a job of SageMaker while it runs
"""


def add_serve(parser: ArgumentParser) -> None:
    parser.epilog = SERVE_EXAMPLES
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="a folder or s3:// prefix of one or many profiles, a training job's name, or account:REGION",
    )
    parser.add_argument("--port", type=int, help="port (default: 8899, or any if that is taken)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1); others need a token"
    )
    parser.add_argument(
        "--base-url", default="", metavar="PATH", help="path under which a proxy shows the page; needs a token, too"
    )
    add_prices(parser, instance_type=False)
    add_jobs(parser)
    parser.add_argument("--allow-changes", action="store_true", help="let viewers change the windows of running jobs")


def run_serve(options: Namespace) -> int:
    from sm_profiler.jobs.finding import is_remote
    from sm_profiler.report.prices import Prices
    from sm_profiler.serve.app import create_app
    from sm_profiler.serve.jobs import Jobs
    from sm_profiler.serve.server import LOOPBACK, clean_base, listen, serve
    from sm_profiler.source.opening import is_job_name

    prices = read_json(options.prices)
    Prices.of(prices)  # before the port is opened
    listed_jobs(options.jobs)
    base = clean_base(options.base_url)
    token = None
    if base or options.host not in LOOPBACK or SERVE_TOKEN.text():
        token = SERVE_TOKEN.text() or secrets.token_urlsafe(24)
    listening = listen(options.host, options.port)
    missing = [source for source in options.sources if not is_remote(source) and not Path(source).is_dir()]
    jobs = Jobs(options.sources, prices, listed=options.jobs or "")
    app = create_app(
        jobs,
        base=base,
        token=token,
        port=listening.port,
        allow_changes=options.allow_changes,
        surveys=not any(map(is_remote, options.sources)),  # asking an account or S3 for all jobs costs money
    )
    print(listening.url(base, token), flush=True)
    for source in options.sources:  # a slow answer must not delay the page
        if source in missing and is_job_name(source):
            threading.Thread(target=name_job, args=(source,), daemon=True).start()
        elif source in missing:
            say(waiting_for(source))
        elif "://" in source:
            threading.Thread(target=name_unreadable, args=(source,), daemon=True).start()
    if len(missing) < len(options.sources):
        say("serving until Ctrl-C")
    serve(app, [listening.socket], jobs.close)
    return DONE


def name_unreadable(source: str) -> None:
    """Print why a prefix cannot be listed, if it cannot; the page goes on trying."""
    from sm_profiler.storage import open_storage

    try:
        next(iter(open_storage(source).list()), None)
    except ProfilerError as error:
        say(f"{printable(error)}; trying again until Ctrl-C")


def name_job(source: str) -> None:
    """Print what the page of a name waits for: of a training job its profile, if that may follow, else a folder or a job."""
    from sm_profiler.source.opening import NoProfilerDataError, open_source

    try:
        open_source(source, cache=False, progress=False)
        text = f"serving training job {source} until Ctrl-C"
    except NoProfilerDataError as error:
        text = printable(error) if error.final else f"waiting for the first data of training job {source}"
    except ProfilerError:  # there is none, or no account to ask
        text = waiting_for(source)
    say(text)


def waiting_for(source: str) -> str:
    """Return what the page of a source that does not exist waits for, with the folder that may be meant."""
    from sm_profiler.source.opening import is_job_name

    path = Path(source)
    try:
        folders = [folder.name for folder in path.parent.iterdir() if folder.is_dir()]
    except OSError:
        folders = []
    near = difflib.get_close_matches(path.name, folders, n=1)
    hint = f" (did you mean {printable(path.with_name(near[0]))}?)" if near else ""
    job = ", or for a training job of that name," if is_job_name(source) else ""
    return f"there is no folder {printable(source)}{hint}; waiting for it{job} until Ctrl-C"


def add_watch(parser: ArgumentParser) -> None:
    parser.epilog = WATCH_EXAMPLES
    add_source(parser)


def run_watch(options: Namespace) -> int:
    from sm_profiler.report.build import job_name
    from sm_profiler.serve.live import LiveJob
    from sm_profiler.serve.terminal import watch

    where = newest_run(options.source, running=True)
    name = job_name(os.path.realpath(where) if os.path.isdir(where) else where)  # may be a URI
    watch(LiveJob(where), name, out=sys.stdout, colour=has_colours(sys.stdout))
    return DONE
