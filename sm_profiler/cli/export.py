"""`sm-profiler export` and `mcp`: verdicts and metrics for chat, queues, dashboards and coding agents."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from functools import partial

from sm_profiler.cli.fleet import add_jobs, listed_jobs
from sm_profiler.cli.main import DONE, add_prices, add_source, newest_run, priced_job, read_json
from sm_profiler.errors import ConfigError, SourceError

EXPORT_EXAMPLES = """\
examples:
  sm-profiler export my-job --to 'webhook:https://hooks.slack.com/services/…'
  sm-profiler export my-job --to eventbridge --to cloudwatch:/training --problems-only
destinations: mlflow[:TRACKING_URI], webhook:URL, sns:ARN, eventbridge[:BUS], cloudwatch[:LOG_GROUP]
"""

MCP_EXAMPLES = """\
examples:
  sm-profiler mcp                                            the runs in ./sm-profiler, on stdio
  sm-profiler mcp s3://bucket/job/profiler-output my-job     these two
  claude mcp add sm-profiler -- sm-profiler mcp              in a coding agent
"""


def add_export(parser: ArgumentParser) -> None:
    parser.epilog = EXPORT_EXAMPLES
    add_source(parser)
    parser.add_argument("--to", metavar="DEST", action="append", default=[], help="destination; may be repeated")
    parser.add_argument(
        "--problems-only",
        action="store_true",
        help="send nothing if the verdict names no problem and the job did not fail",
    )
    parser.add_argument("--again", action="store_true", help="send a finding that was sent before")
    parser.add_argument(
        "--ledger",
        metavar="DIR",
        help="folder or s3:// URI of the list of what was sent (default: ~/.local/state/sm-profiler/sent/<job>)",
    )
    parser.add_argument("--link", metavar="URL", default="", help="address of the report's page, for the message")
    add_prices(parser)


def run_export(options: Namespace) -> int:
    import attrs

    from sm_profiler.cli.report import default_folder, is_issue
    from sm_profiler.exporters.destination import SentList, open_destination, sent_folder
    from sm_profiler.printable import printable
    from sm_profiler.report import build_report
    from sm_profiler.source import open_source
    from sm_profiler.storage import open_storage

    if not options.to:
        raise ConfigError("--to is missing: name a destination, for example --to eventbridge")
    exporters = {text: open_destination(text) for text in options.to}
    job = priced_job(options)
    report = build_report(open_source(newest_run(options.source)), job=job)
    report = attrs.evolve(report, link=printable(options.link))
    if options.problems_only and not is_issue(report):
        print(f"{report.verdict.kind.value}: nothing sent")
        return DONE
    earlier = default_folder(report.metrics.name)
    place = options.ledger or sent_folder(report.metrics.name) or earlier
    sent_before = SentList(open_storage(place), None if options.ledger else open_storage(earlier))
    failed = []
    for text, exporter in exporters.items():
        kind = text.partition(":")[0]
        if exporter.once:
            if not options.again and sent_before.has(report, text):
                print(f"{kind}: sent before")
                continue
            sent_before.prepare()
        try:
            sent = exporter.send(report)
        except SourceError as error:  # the others get it nevertheless
            failed.append(str(error))
            continue
        if exporter.once:
            sent_before.record(report, text)
        print(printable(f"{kind}: sent {sent}"))  # it may have a name that a server chose
    if failed:
        raise SourceError("; ".join(failed))
    return DONE


def add_mcp(parser: ArgumentParser) -> None:
    parser.epilog = MCP_EXAMPLES
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="*", default=["sm-profiler"],
        help="folders of runs or profiles, s3:// URIs, training jobs, account:REGION; nothing else is read (default: ./sm-profiler)"
    )  # fmt: skip
    parser.add_argument("--source-lines", action="store_true", help="show agents the text of lines of your code")
    add_jobs(parser)
    add_prices(parser, instance_type=False)


def run_mcp(options: Namespace) -> int:
    prices, listed = read_json(options.prices), listed_jobs(options.jobs)
    from sm_profiler.exporters.mcp import Library, build_server, jobs_of, survey

    with tempfile.TemporaryDirectory(prefix="sm-profiler-mcp-") as index:
        fleet = partial(survey, options.sources, index, prices=prices, listed=listed)
        library = Library(partial(jobs_of, options.sources), fleet, prices)
        server = build_server(library, source_lines=options.source_lines)
        server.run("stdio")
    return DONE
