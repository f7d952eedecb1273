"""Under what a run was recorded: the machine and the time, what disturbed it, how long calls take on other devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import PurePath
from typing import Annotated, Final

import msgspec

from tracemap.codec import Count, Record
from tracemap.units import INTEGER_LIMIT, UNKNOWN, Integer, Text


class Machine(Record, frozen=True):
    """The machine that a run was recorded on, and when: by its own clock, which may be wrong."""

    host: Annotated[Text, msgspec.Meta(description="Its name.")]
    cpu_model: Annotated[Text, msgspec.Meta(description="What its processor calls itself.")]
    processors: Annotated[Integer, msgspec.Meta(description="Of the whole machine.")]
    recorded_ns: Annotated[Integer, msgspec.Meta(description="Since 1970-01-01T00:00:00Z, when the run was written.")]


UNKNOWN_MACHINE: Final = Machine(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def recorded_at(told: datetime) -> Integer:
    """Nanoseconds since 1970 of a time that tells its zone; unknown before that, and where 64 bits do not hold them.

    >>> recorded_at(datetime(1970, 1, 1, 0, 0, 1, 700_000, UTC)), recorded_at(datetime(2300, 1, 1, tzinfo=UTC))
    (1700000000, UNKNOWN)
    """
    nanoseconds = (told - _EPOCH) // timedelta(microseconds=1) * 1000
    return nanoseconds if 0 <= nanoseconds <= INTEGER_LIMIT else UNKNOWN


class Disturbance(Record, frozen=True):
    """What disturbed the program while it was measured, summed over its threads.

    It was observed for `observed_ns` of the measured calls. `running_ns`, `waiting_ns`: time on a processor, and time
    ready to run without one; `busy_ns`: time that all processors spent on any program; `stolen_ns`: time that the host
    of a virtual machine gave to others, of all processors; frequencies are means of all processors; `load_percent`: the
    machine's load average of a minute, 100 is one.
    """

    observed_ns: Integer
    running_ns: Integer
    waiting_ns: Integer
    voluntary_switches: Integer
    involuntary_switches: Integer
    migrations: Integer
    minor_faults: Integer
    major_faults: Integer
    busy_ns: Integer
    stolen_ns: Integer
    frequency_before_hz: Integer
    frequency_after_hz: Integer
    load_percent: Integer


UNOBSERVED: Final = Disturbance(**dict.fromkeys(Disturbance.__struct_fields__, UNKNOWN))
"""What a run tells that nobody looked at while it was recorded."""


class DeviceTime(Record, frozen=True):
    """How long a call took on a device, without the profiler: the median of calls, with its 95 % interval.

    Runs of earlier releases have the median of means of groups of calls.
    """

    device: str
    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    groups: Count
    calls: Annotated[Count, msgspec.Meta(description="In each group: 1, the median is that of single calls.")]


_NICE: Final = ("nice", "-n")


def nice_words(niceness: int) -> tuple[str, ...]:
    """How a shell that runs at niceness 0 runs a program at another (POSIX `nice`)."""
    return () if niceness == 0 else (*_NICE, str(niceness))


def niceness_said(command: Sequence[str]) -> Text:
    """The niceness that a run's command tells; unknown where there is no command.

    >>> niceness_said(("nice", "-n", "-20", "iree-benchmark-module")), niceness_said(("iree-benchmark-module",))
    ('-20', '0')
    """
    if not command:
        return UNKNOWN
    return command[2] if tuple(command[:2]) == _NICE and len(command) > 2 else "0"


def differing_inputs(ones: Iterable[Sequence[str]], twos: Iterable[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Arguments that runs tell differently: the number of each, what it is in ones of them, and in the others.

    Sizes of inputs decide how much is to be done, their values which way that goes.

    >>> differing_inputs([("8xf32=1", "@a/x.npy")], [("8xf32=1", "@b/x.npy"), ("16xf32=1",)])
    [(0, '8xf32=1', '16xf32=1')]
    """
    pairs = (zip(one, two, strict=False) for one, two in product(dict.fromkeys(ones), dict.fromkeys(twos)))
    told = ((number, *pair) for of_runs in pairs for number, pair in enumerate(of_runs))
    return [each for each in told if _without_folders(each[1]) != _without_folders(each[2])]


def _without_folders(said: str) -> str:
    """What is said of an input; a file of the same name is taken for the same one, wherever it lies."""
    head, at, path = said.partition("@")
    return head + at + PurePath(path).name if at else said
