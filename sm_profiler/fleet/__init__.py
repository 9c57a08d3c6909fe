"""Many jobs at once: a row for each, what they cost, what of that was lost, and what they have in common.

Example:
    from sm_profiler.fleet import build_fleet, write_fleet

    write_fleet(build_fleet(["s3://bucket/jobs"]), "fleet-report")
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["Fleet", "FleetJob", "build_fleet", "write_fleet"]

if TYPE_CHECKING:
    from sm_profiler.fleet.building import build_fleet, write_fleet
    from sm_profiler.fleet.model import Fleet, FleetJob
else:  # Arrow is loaded by what needs it
    __getattr__, __dir__ = lazy_exports(
        __name__, {"building": ["build_fleet", "write_fleet"], "model": ["Fleet", "FleetJob"]}
    )
