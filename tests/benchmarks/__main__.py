"""``python -m tests.benchmarks``."""

from __future__ import annotations

import sys

from tests.benchmarks.run import main

sys.exit(main())
