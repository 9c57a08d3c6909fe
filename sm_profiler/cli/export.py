"""`sm-profiler export`: the verdict and metrics of a job, sent to where a team looks."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import DONE, SOURCE_HELP, name_unknown_price, newest_run, read_json
from sm_profiler.errors import ConfigError, SourceError

EXAMPLES = """\
examples:
  sm-profiler export my-job --to 'webhook:https://hooks.slack.com/services/…'
  sm-profiler export my-job --to eventbridge --to cloudwatch:/training --problems-only
destinations: mlflow[:TRACKING_URI], webhook:URL, sns:ARN, eventbridge[:BUS], cloudwatch[:LOG_GROUP]
"""


class Command:
    """Judges a job and sends what was found; the same finding once only."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
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
            help="folder or s3:// URI of the list of what was sent (default: ./profiler-report/<job>)",
        )
        parser.add_argument(
            "--link",
            metavar="URL",
            default="",
            help="address of the report's page, for the message",
        )
        parser.add_argument(
            "--instance-type", metavar="TYPE", help="the job's instance type, to estimate the lost money"
        )
        parser.add_argument(
            "--prices",
            type=Path,
            metavar="FILE",
            help="JSON of dollars per hour by instance type, added to the built-in table",
        )

    def run(self, options: Namespace) -> int:
        """Judge, and send to one destination after the other."""
        import attrs

        from sm_profiler.cli.report import default_folder, is_issue
        from sm_profiler.exporters.destination import Ledger, open_destination
        from sm_profiler.printable import printable
        from sm_profiler.report import JobInfo, build_report
        from sm_profiler.source import open_source
        from sm_profiler.storage import open_storage

        if not options.to:
            raise ConfigError("--to is missing: name a destination, for example --to eventbridge")
        exporters = {text: open_destination(text) for text in options.to}
        prices = read_json(options.prices) if options.prices else None
        name_unknown_price(options.instance_type, prices)
        source = open_source(newest_run(options.source))
        report = build_report(source, job=JobInfo(instance_type=options.instance_type, prices=prices))
        report = attrs.evolve(report, link=printable(options.link))
        if options.problems_only and not is_issue(report):
            print(f"{report.verdict.kind.value}: nothing sent")
            return DONE
        ledger = Ledger(open_storage(options.ledger or default_folder(report.metrics.name)))
        failed = []
        for text, exporter in exporters.items():
            kind = text.partition(":")[0]
            if exporter.once and not options.again and ledger.has(report, text):
                print(f"{kind}: sent before")
                continue
            if exporter.once:
                ledger.prepare()
            try:
                sent = exporter.send(report)
            except SourceError as error:  # the others get it nevertheless
                failed.append(str(error))
                continue
            if exporter.once:
                ledger.record(report, text)
            print(f"{kind}: sent {sent}")
        if failed:
            raise SourceError("; ".join(failed))
        return DONE
