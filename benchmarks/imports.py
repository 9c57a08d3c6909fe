"""Time of our imports: median of ten warm starts, without the start of the interpreter.

python benchmarks/imports.py
"""

import statistics
import subprocess
import sys
import time
from importlib.util import find_spec

ROUNDS = 10
MODULES = ("sm_profiler", "sm_profiler.debugger", "sagemaker.debugger")


def start_ms(program: str) -> float:
    """Return the milliseconds from the start of an interpreter to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000


def main() -> None:
    modules = [name for name in MODULES if find_spec(name.partition(".")[0])]
    for name in modules:
        start_ms(f"import {name}")  # compiles the modules
    print("| import | median, ms | minimum, ms |\n|---|---|---|")
    for name in modules:
        # pairs: the machine's load is the same for both halves
        pairs = [start_ms(f"import {name}") - start_ms("pass") for _ in range(ROUNDS)]
        print(f"| `{name}` | {statistics.median(pairs):.0f} | {min(pairs):.0f} |")


if __name__ == "__main__":
    main()
