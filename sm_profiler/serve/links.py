"""Links between the pages: each page leads to the others by the same line."""

from __future__ import annotations

from collections.abc import Sequence

from sm_profiler.report.page import Link

JOBS, FLEET = "All jobs", "Cost and lost time"


def links_of(path: str, *more: Link, fleet: bool = True, here: str = "") -> Sequence[Link]:
    """Return the links of a page, relative to its own address: a proxy may show it anywhere.

    Args:
        path: the page's path, as the application has it.
        more: links of that page only.
        fleet: there is a page of the fleet.
        here: the text of the link to the page itself, which has none.
    """
    up = "../" * (path.count("/") - 1)
    places = {JOBS: up or "./"} | ({FLEET: f"{up}fleet"} if fleet else {})
    found = [Link(text, "" if text == here else address) for text, address in places.items()]
    found += more
    return found if any(link.address for link in found) else ()
