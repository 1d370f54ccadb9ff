"""Tests of the packages of a release run where `DIST` names their folder, as `make dist` does after it built them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("DIST") else ["test_*.py"]
