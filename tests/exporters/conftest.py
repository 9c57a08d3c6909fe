"""Helpers of the report's tests are used here, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))
