"""Batches of invocations: what `--batch_size` and `--batch_concurrency` make iree-benchmark-module do.

It calls an asynchronous function a batch at a time: it submits all calls at once, in `--batch_concurrency` chains, in
which each call waits for the one before it. Then it waits for all, and writes the profile. It calls a synchronous
function once, whatever the flags say: `--batch_size` is what it divides the time of a call by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.errors import UsageInvalid

_SIZE: Final = "--batch_size"
_CONCURRENCY: Final = "--batch_concurrency"
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """How a function is called.

    `calls`: invocations in a batch; `flags`: those that make the program do so; `pieces`: of a batch, in which the
    program's clock goes; `said`: the flags that change nothing, as the function is synchronous.
    """

    calls: int = 1
    flags: tuple[str, ...] = ()
    pieces: int = 1
    said: tuple[str, ...] = ()

    def rounded(self, calls: int) -> int:
        """The number of invocations of as many batches as it takes for so many.

        >>> Batch(calls=4).rounded(10)
        12
        """
        return self.count(calls) * self.calls

    def count(self, calls: int) -> int:
        """The number of batches that it takes for so many invocations."""
        return -(-calls // self.calls)


def batch_of(flags: Sequence[str], *, asynchronous: bool) -> Batch:
    """The batch that flags ask for; of several flags of one name the last counts.

    Raises:
        UsageInvalid: a number is none, or out of range.
    """
    sizes = {name: _number(name, flags) for name in (_SIZE, _CONCURRENCY)}
    said = tuple(f"{name}={number}" for name, number in sizes.items() if number != 1)
    if not asynchronous:
        return Batch(said=said)
    concurrency = sizes[_CONCURRENCY]
    # As the program does: every chain has as many calls.
    calls = -(-sizes[_SIZE] // concurrency) * concurrency
    return Batch(calls, said, 2)


def without_batches(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags without those of batches."""
    return tuple(flag for flag in flags if flag.partition("=")[0] not in {_SIZE, _CONCURRENCY})


def _number(name: str, flags: Sequence[str]) -> int:
    texts = [text for flag, _, text in (each.partition("=") for each in flags) if flag == name]
    if not texts:
        return 1
    number = int(texts[-1]) if re.fullmatch("[0-9]{1,10}", texts[-1]) else 0
    if not 1 <= number <= _MOST:
        raise UsageInvalid(f"{name}={texts[-1]}: give a whole number of invocations, from 1 to {_MOST:,}")
    return number
