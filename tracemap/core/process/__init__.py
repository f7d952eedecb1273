"""Cleanup: only the results of this process outlive it for long, not its child processes or temporary files.

Child processes and temporary files are removed when they are no longer needed, even if a signal ends the program. If a
process is killed before it can clean up, the next one that starts does it.
"""

from __future__ import annotations
