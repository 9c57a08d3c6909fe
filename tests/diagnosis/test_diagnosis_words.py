"""All sentences of verdicts in one stored file, with numbers in their places: what an editor of the English sees change."""

from collections import defaultdict
from string import Formatter

from sm_profiler.diagnosis import words
from sm_profiler.diagnosis.stack import PYTORCH
from tests.support.stored import assert_as_stored

PLACES = {
    "share": "31 %", "of_step": "40 %", "of": "12 of 30 ms", "wait": "12 ms", "step": "30 ms", "time": "12 ms", "each": "0.8 ms",
    "count": "5", "steps": "400", "period": "40", "typical": "210 ms", "usual": "10.2 ms", "name": "train", "gpu": "38",
    "memory": 31, "rank": "algo-1-1", "own": "20 ms", "theirs": "9 ms", "process": "node algo-1, process algo-1-1",
    "workers": "2 workers", "suggested": "4", "now": "2", "where": "outside the phases", "calls": "1,500", "takes": "take",
    "costs": "they cost", "stack": PYTORCH, "how": PYTORCH.evaluation, "operators": "412", "cores": "2 cores", "needed": "3 workers", "are": "are",
}  # fmt: skip


def test_all_sentences_are_as_stored():
    lines = []
    for title, table in (
        ("Headlines", words.HEADLINES), ("Next steps", words.ADVICE), ("Fragments", words.FRAGMENTS),
        ("Headlines of GPU traces", words.GPU_HEADLINES), ("Next steps of GPU traces", words.GPU_ADVICE),
        ("What to compile", {f"{name}, {state}": text for name, pair in words.GPU_COMPILE.items() for state, text in zip(("yet", "more"), pair, strict=True)}),
    ):  # fmt: skip
        lines.append(f"== {title}")
        for name, text in table.items():
            places = defaultdict(str, {key: f"<{key}>" for _, key, _, _ in Formatter().parse(text) if key}) | PLACES
            lines += [name, f"    {text.format_map(places).strip()}"]
    assert_as_stored("\n".join(lines) + "\n", "verdicts")
