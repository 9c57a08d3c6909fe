"""`python -m sm_profiler` is `sm-profiler`."""

import sys

from sm_profiler.cli import main

sys.exit(main())
