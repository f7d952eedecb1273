"""Counters: exact names, events of this machine, exact counts in the hook."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.hook import support
from tests.hook.test_host import host, kernels, library, output
from tests.support import check_cli, run_cli
from tracemap.capture.counters import (
    MOST_EVENTS,
    RAW,
    SOFTWARE,
    Event,
    check_event,
    events_to_count,
    find_event,
    is_zen4,
    known_events,
    run_together,
    split_into_passes,
    zen4_events,
)
from tracemap.core.errors import EventUnavailable
from tracemap.options.option import split_names
from tracemap.runs.hook.recording import read_recording

__all__ = ["host", "kernels", "library", "output"]

TOUCHED = 8  # pages that the kernel touch_pages makes the first write to


def need(*names: str) -> list[str]:
    """The hook's settings of these events; skips where one cannot be counted."""
    try:
        return [event.setting for event in events_to_count(names)]
    except EventUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("count", [1, 4])
def test_page_faults_are_counted_exactly(count: int, library: Path, host: Path, kernels: Path, output: Path) -> None:
    names = ("page-faults", "minor-faults", "major-faults", "context-switches")[:count]
    settings = support.hooked(library, output, events=tuple(need(*names)))
    support.run([host, kernels, "threads", "2", "100", "2"], settings)
    recording = read_recording(output)
    assert recording.event_names == names
    for thread in recording.processes[0].threads:
        assert np.all(thread.events[:, 0] == TOUCHED)
        if count == 4:
            assert np.all(thread.events[:, 1] == TOUCHED)
            assert np.all(thread.events[:, 2] == 0)


def test_a_kernel_without_faults_has_none(library: Path, host: Path, kernels: Path, output: Path) -> None:
    settings = support.hooked(library, output, events=tuple(need("page-faults")))
    support.run([host, kernels, "threads", "1", "1000", "1"], settings)
    (thread,) = read_recording(output).processes[0].threads
    assert thread.events.sum() == 0


def test_grouped_and_ring_counts_agree(library: Path, host: Path, kernels: Path, output: Path) -> None:
    (ring,) = need("page-faults")
    grouped = ring.replace("page-faults", "grouped-faults").replace("|ring", "|group")
    settings = support.hooked(library, output, events=(ring, grouped, *need("task-clock")))
    support.run([host, kernels, "threads", "1", "50", "2"], settings)
    (process,) = read_recording(output).processes
    (thread,) = process.threads
    assert np.all(thread.events[:, 0] == TOUCHED)
    assert np.all(thread.events[:, 1] == TOUCHED)
    # The thread's own clock, read around the call's, covers it. It stands still while other programs have the
    # processor, which happens in many calls on a busy machine.
    ran = thread.events[:, 2] >= np.floor(thread.calls["duration_ticks"] * process.ns_per_tick) - 100
    assert ran.mean() > 0.5


@pytest.mark.parametrize("name", ["cpu-cycles", "instructions", "L1-dcache-loads"])
def test_hardware_events_count(name: str, library: Path, host: Path, kernels: Path, output: Path) -> None:
    settings = support.hooked(library, output, events=tuple(need(name)))
    support.run([host, kernels, "threads", "1", "100", "1"], settings)
    (thread,) = read_recording(output).processes[0].threads
    assert np.median(thread.events[:, 0]) > 1000  # the kernel adds up a thousand numbers


def test_names_are_exact() -> None:
    assert find_event("LLC-load-misses").config == 0x10002
    assert find_event("branch-prefetch-misses").config == 0x10205
    assert find_event("r01c2").config == 0x01C2
    assert find_event("faults").setting.startswith("faults|1|2|")
    for wrong in ("page-fault", "page-faults2", "LLC", "", "rxyz", "cpu/", "nothing/event=1/", "software/umask=1/"):
        with pytest.raises(EventUnavailable):
            find_event(wrong)


def test_lists_of_names_keep_terms_together() -> None:
    assert split_names("a,cpu/event=0x3c,umask=0/,,r1 ,b") == ["a", "cpu/event=0x3c,umask=0/", "r1", "b"]


def test_events_of_the_kernels_own_lists() -> None:
    found = find_event("software/config=2/")
    assert (found.type, found.config) == (SOFTWARE, 2)
    with pytest.raises(EventUnavailable, match=r"too large|no number"):
        find_event("software/config=0x10000000000000000/")


def test_tables_of_events_have_no_doubles() -> None:
    for events in (known_events(), zen4_events()):
        assert all(event.description for event in events)
        assert len({event.name for event in events}) == len(events)


def test_numbers_of_zen4_have_twelve_bits() -> None:
    """As Linux lays them out (its `format/event` is `config:0-7,32-35`): event 0x18e, unit mask 0x18."""
    configs = {event.name: event.config for event in zen4_events()}
    assert configs["ic_tag_hit_miss.instruction_cache_miss"] == 0x1_0000_188E
    assert configs["ex_ret_ucode_ops"] == 0x1_0000_00C2
    assert configs["ls_dmnd_fills_from_sys.all"] == 0xFF43


@pytest.mark.parametrize(
    ("vendor", "family", "model", "is_one"),
    [
        ("AuthenticAMD", 25, 17, True),
        ("AuthenticAMD", 25, 97, True),
        ("AuthenticAMD", 25, 33, False),  # a Zen 3
        ("AuthenticAMD", 26, 2, False),  # a Zen 5
        ("AuthenticAMD", 23, 49, False),
        ("GenuineIntel", 25, 17, False),
    ],
)
def test_names_of_zen4_are_for_zen4_only(vendor: str, family: int, model: int, *, is_one: bool, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n", encoding="ascii"
    )
    assert is_zen4(cpuinfo) == is_one
    assert not is_zen4(tmp_path / "missing")


def test_command_lists_what_opens() -> None:
    rows = json.loads(check_cli("events", "--format", "json"))["events"]
    assert len(rows) == len(known_events())
    opened = {row["name"] for row in rows if row["opens"]}
    assert opened == {event.name for event in known_events() if check_event(event).opens}
    assert all(row["reason"] for row in rows if not row["opens"])
    text = check_cli("events")
    assert all(row["name"] in text for row in rows)


def test_command_refuses_what_is_no_event() -> None:
    done = run_cli("events", "cache-mises")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "cache-misses" in done.stderr
    assert done.stderr.endswith("[event-unavailable]\n")


@pytest.mark.parametrize("names", [("cpu-cycles",), ("page-faults", "page-faults"), ("cpu-clock",) * 17])
def test_events_that_cannot_be_counted_are_named(names: tuple[str, ...]) -> None:
    if names == ("cpu-cycles",) and check_event(find_event("cpu-cycles")).opens:
        pytest.skip("this machine counts cycles")
    with pytest.raises(EventUnavailable, match=f"{names[0]}|17"):
        events_to_count(names)


def test_events_are_put_in_passes_in_their_order() -> None:
    """Software events have no counters to run short of; more than the hook takes at a time make further passes."""
    events = [Event(f"e{number}", SOFTWARE, 2) for number in range(20)]
    assert [len(each) for each in split_into_passes(events)] == [MOST_EVENTS, 4]
    assert [event for each in split_into_passes(events) for event in each] == events
    assert [len(each) for each in split_into_passes(events, per_pass=7)] == [7, 7, 6]
    assert split_into_passes([]) == []


def test_events_that_do_not_run_together_are_parted() -> None:
    """An event that this machine does not open at all never fits beside another one."""
    nowhere = Event("nowhere", RAW, (1 << 63) | 0xFFFF)
    clock = Event("cpu-clock", SOFTWARE, 0)
    assert not run_together([nowhere, nowhere])
    assert split_into_passes([nowhere, clock, nowhere]) == [(nowhere, clock), (nowhere,)]


def test_the_kernels_clocks_run_together() -> None:
    try:
        events = events_to_count(["cpu-clock", "task-clock"])
    except EventUnavailable as error:
        pytest.skip(str(error))
    assert run_together(events)


def test_hardware_events_share_the_processors_counters() -> None:
    """Where there is a PMU: a few events run together, all of them at a time do not."""
    try:
        few = events_to_count(["cpu-cycles", "instructions"])
    except EventUnavailable as error:
        pytest.skip(str(error))
    names = [event.name for event in known_events() if event.type != SOFTWARE and check_event(event).opens]
    assert len(split_into_passes(few)) == 1
    assert len(split_into_passes(events_to_count(names[:30]))) > 1
