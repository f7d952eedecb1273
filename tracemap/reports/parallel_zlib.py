"""zlib compression on all processors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from tracemap.processors import usable_processors

_BLOCK: Final = 1 << 20
_WINDOW: Final = 1 << 15
"""Largest distance of a match (RFC 1951, 2)."""
LEVEL: Final = 4
"""Higher levels take twice the time to save a fourteenth of the size."""
_HEADER: Final = b"\x78\x5e"
"""zlib header: window of 32 KiB, fast level."""


def deflating(data: bytes) -> Callable[[], bytes]:
    """Start to compress bytes in the background; the returned function waits for the result.

    The result is a standard zlib stream, and deterministic.
    """
    if len(data) <= _BLOCK:
        whole = zlib.compress(data, LEVEL)
        return lambda: whole
    from concurrent.futures import ThreadPoolExecutor

    # zlib releases the GIL while it compresses.
    pool = ThreadPoolExecutor(usable_processors())
    blocks = [pool.submit(_block, memoryview(data), begin) for begin in range(0, len(data), _BLOCK)]
    pool.shutdown(wait=False)
    check = zlib.adler32(data).to_bytes(4, "big")
    return lambda: b"".join((_HEADER, *(block.result() for block in blocks), check))


def _block(data: memoryview, begin: int) -> bytes:
    """Compress the block at `begin`, up to a byte boundary; the last block ends the stream."""
    window, end = data[max(0, begin - _WINDOW) : begin], begin + _BLOCK
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=window)
    return compressor.compress(data[begin:end]) + compressor.flush(
        zlib.Z_FINISH if end >= len(data) else zlib.Z_SYNC_FLUSH
    )
