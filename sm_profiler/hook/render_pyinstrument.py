"""Render sessions of Pyinstrument as JSON and as pages.

Runs as a separate process beside the training, `python -m sm_profiler.hook.render_pyinstrument`, with its order as JSON on
standard input (see `conversion`): to render competes for the interpreter, and a training would wait for it at every step.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm_profiler.hook.conversion import carry_out


def convert(order: Mapping[str, Any]) -> None:
    """Write the JSON and the page of each session of an order, and remove the raw one.

    Raises:
        OSError: a file cannot be read or written.
    """
    from pyinstrument.renderers import HTMLRenderer, JSONRenderer  # an optional dependency
    from pyinstrument.session import Session

    for raw, page_of in order["sessions"]:
        source, target = Path(raw), Path(page_of)
        session = Session.from_json(marshal.loads(source.read_bytes()))  # noqa: S302 - the hook has just written it
        target.parent.mkdir(parents=True, exist_ok=True)
        for renderer, suffix in ((JSONRenderer(), ".json"), (HTMLRenderer(), ".html")):
            temporary = target.with_name(f"{target.name}{suffix}.tmp")
            temporary.write_text(renderer.render(session), encoding="utf-8")
            temporary.rename(target.with_name(target.name + suffix))
        source.unlink()


if __name__ == "__main__":
    carry_out(convert)
