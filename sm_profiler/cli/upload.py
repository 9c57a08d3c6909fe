"""`sm-profiler upload`: a profile that was left behind."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.command import BAD, DONE
from sm_profiler.printable import printable

EXAMPLES = """\
examples:
  sm-profiler upload /tmp/sm-profiler/me/train-101
  sm-profiler upload profile --to s3://bucket/profiles/train-101/profiler-output
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=Path, metavar="DIR", help="the profile's folder")
    parser.add_argument(
        "--to", default="", metavar="URI", help="s3:// URI of the profiler-output (default: that of the job)"
    )


def run(options: Namespace) -> int:
    from sm_profiler.formatting import plural
    from sm_profiler.monitor.left_profile import upload_left

    done = upload_left(options.folder, options.to)
    failed = f", {done.failed} failed: {printable(done.error)}" if done.failed else ""
    print(
        f"{plural(done.files, 'file')} uploaded to {printable(done.uri)}, {done.there:,} uploaded before{failed}; "
        f"{printable(done.markers) or 'end markers written'}"
    )
    return BAD if done.failed else DONE
