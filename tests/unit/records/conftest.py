"""Property tests here run on machines of any speed: what is slow is told by the test's own timeout."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("records", deadline=None, print_blob=True)
settings.load_profile("records")
