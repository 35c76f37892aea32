"""Two workers share two cores: each computes with one thread. Timing is never judged, so nothing has a deadline."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

settings.register_profile("selfdraft", deadline=None)
settings.load_profile("selfdraft")

if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)
