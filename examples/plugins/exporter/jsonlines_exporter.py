"""A destination: a file with one line of JSON for each finding."""

import json

from sm_profiler.errors import ConfigError, SourceError


class JsonLines:
    once = False  # each call appends a line

    def __init__(self, path):
        self.path = path

    def send(self, report):
        line = {
            "job": report.metrics.name,
            "class": report.verdict.kind.value,
            "headline": report.verdict.main.headline,
        }
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}") from error
        return f"a line to {self.path}"


def open_exporter(place):
    if not place:
        raise ConfigError("--to jsonlines: expected a path, as in jsonlines:findings.jsonl")
    return JsonLines(place)
