"""Record files of the hook: processes, calls, samples, and statistics of calls."""

from __future__ import annotations
