"""Run a script with the hook armed: `python -m sm_profiler.hook.launch`, for source checkouts without the `.pth` file."""

from __future__ import annotations

from sm_profiler.hook.auto import arm
from sm_profiler.processes import run_as_main


def main() -> None:
    """Run `-m MODULE ARGS` or `SCRIPT ARGS` as `__main__`."""
    arm()
    run_as_main()


if __name__ == "__main__":
    main()
