"""zlib compression on all processors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from tracemap.processors import usable_processors

_BLOCK: Final = 1 << 20
_WINDOW: Final = 1 << 15
"""How far back a match may lie (RFC 1951, 2)."""
LEVEL: Final = 4
"""Higher ones take twice the time for a fourteenth of the size."""
_HEADER: Final = b"\x78\x5e"
"""A window of that size, and a level that is rather fast."""


def deflating(data: bytes) -> Callable[[], bytes]:
    """Begin to compress bytes, so that something else can be made meanwhile; what is returned waits for the end.

    Any zlib reads what comes of it, which is the same for the same data.
    """
    if len(data) <= _BLOCK:
        whole = zlib.compress(data, LEVEL)
        return lambda: whole
    from concurrent.futures import ThreadPoolExecutor

    # zlib lets other threads run while it compresses.
    pool = ThreadPoolExecutor(usable_processors())
    blocks = [pool.submit(_block, memoryview(data), begin) for begin in range(0, len(data), _BLOCK)]
    pool.shutdown(wait=False)
    check = zlib.adler32(data).to_bytes(4, "big")
    return lambda: b"".join((_HEADER, *(block.result() for block in blocks), check))


def _block(data: memoryview, begin: int) -> bytes:
    """The block that begins there, which ends at a whole byte; the last one says that it is the last."""
    before, end = data[max(0, begin - _WINDOW) : begin], begin + _BLOCK
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    return compressor.compress(data[begin:end]) + compressor.flush(
        zlib.Z_FINISH if end >= len(data) else zlib.Z_SYNC_FLUSH
    )
