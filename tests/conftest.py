"""Two workers share two cores: each computes with one thread. Timing is never judged, so nothing has a deadline."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("selfdraft", deadline=None)
settings.load_profile("selfdraft")

if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and by the processes that tests start
