"""Finds the sub-command, runs it, and turns its end into an exit code."""

from __future__ import annotations

import argparse
import difflib
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from sm_profiler._version import __version__
from sm_profiler.cli.command import USAGE
from sm_profiler.errors import ProfilerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm_profiler.cli.command import Command

# name → what `--help` says of it; the class `Command` stands in `sm_profiler.cli.<name>`
COMMANDS = {
    "run": "run a training script with the profiler on, no change to the script",
    "report": "judge a profile: verdict, rules, HTML report",
    "compare": "two runs side by side, for people and for CI",
    "merge-timeline": "one trace of a whole job for Perfetto or chrome://tracing",
    "monitor": "sample this machine's metrics until stopped",
    "validate": "say in plain words what a profiler configuration will do, or what is wrong with it",
    "local": "start a SageMaker and S3 endpoint on this machine that really runs jobs",
    "demo": "the whole loop on this machine: train, profile, judge, report",
    "deploy": "put the rule image into your registry",
    "rules": "run the rules on a finished or running job",
}
EPILOG = """\
start here:
  sm-profiler run train.py             profile a script on this machine
  sm-profiler report sm-profiler/…     why was it slow?
  sm-profiler demo                     watch the whole loop, no AWS account needed
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a call in one line; sub-commands are parsers of this kind too."""

    def error(self, message: str) -> NoReturn:
        """End with the code of wrong usage."""
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def module_of(name: str) -> str:
    """The module that holds a sub-command."""
    return f"sm_profiler.cli.{name.replace('-', '_')}"


def available() -> dict[str, str]:
    """The sub-commands that this installation has."""
    return {name: text for name, text in COMMANDS.items() if find_spec(module_of(name))}


def build_parser(chosen: str | None) -> tuple[Parser, Parser | None, Command | None]:
    """Build the parser, and that of the chosen sub-command; only this one is loaded, so that `--help` is instant."""
    parser = Parser(
        prog="sm-profiler",
        description="Why is my training job slow, and what do I do about it?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sm-profiler {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    parser_of_chosen: Parser | None = None
    loaded: Command | None = None
    for name, text in available().items():
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == chosen:
            command: Command = import_module(module_of(name)).Command()
            command.add_arguments(sub)
            parser_of_chosen, loaded = sub, command
    return parser, parser_of_chosen, loaded


def no_command(name: str) -> str:
    """The line on a sub-command that does not exist."""
    near = difflib.get_close_matches(name, available(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(available())}"
    return f"sm-profiler: no command {name}; {hint}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, and never shows a traceback for a user's mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    try:
        parser, parser_of_chosen, command = build_parser(chosen)
        if command is None and chosen is not None and words[0] == chosen:
            parser.exit(USAGE, f"{no_command(chosen)}\n")
        options, unknown = parser.parse_known_args(words)
        if unknown:
            (parser_of_chosen or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
        if command is None:  # argparse has already refused anything else
            parser.error("no command given")
        return command.run(options)
    except ProfilerError as error:
        print(f"sm-profiler: {error}", file=sys.stderr)
        return USAGE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "sm_profiler":
            raise
        print(f"sm-profiler: this command needs {error.name}: pip install 'sm-profiler[all]'", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
