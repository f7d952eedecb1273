"""Disks so small that they fill while a test looks on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk_of(size: str, folder: Path) -> Iterator[Path]:
    """A new folder that is a file system of this size, as `mount` takes it; the test skips where it may not mount."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program `mount`")
    if done.returncode:
        pytest.skip(f"this user may mount nothing: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
