"""IREE's own profiles (`.ireeprof`) and the exports of `iree-profile`: timed events."""

from __future__ import annotations
