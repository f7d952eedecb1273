"""Runs put into a store, and questions about all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.options.store import (
    AskOptions,
    StoreAddOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreTrendOptions,
)
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.session.runs import check_named_once, find_bundle, opened_runs
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.circumstances import Machine
    from tracemap.measurements.model import Run
    from tracemap.store.adding import Said
    from tracemap.store.engine import Engine
    from tracemap.store.headers import Headers
    from tracemap.store.layout import Store
    from tracemap.store.lineage import Keys
    from tracemap.store.model import AddedRun, FleetAdded, FleetComparison, FleetCosts, FleetRuns, FleetTrends

_NANOSECONDS: Final = 1_000_000_000


# ---- adding


def store_add(
    runs: Sequence[Path], bundle: Bundle | None, options: StoreAddOptions, progress: Progress = no_progress
) -> FleetAdded:
    """Put runs into a store, which is made with the first one. A run that is there already stays as it is.

    Raises:
        TracemapError: as `session.attribute.attribute` does for each of them.
        UsageInvalid: a tag or a time is none.
        TargetUnwritable: the store cannot be written.
    """
    from tracemap.graph.bundle import load
    from tracemap.store.layout import Store
    from tracemap.store.model import FleetAdded

    if not runs:
        raise UsageInvalid("name at least one run")
    check_named_once(runs)
    tags, recorded_ns = _tags(options.tag), _recorded_ns(options.recorded)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    store, found = Store(options.store), []
    for path in runs:
        with opened_runs([path]) as (run,):
            of_run = bundle or load(find_bundle(run, path))
            progress(f"adding {path}")
            machine = _machine(run, options, recorded_ns)
            found.append(_add(store, path, run, of_run, options, (tags, machine), progress))
    return FleetAdded(runs=tuple(found))


def _add(
    store: Store,
    path: Path,
    run: Run,
    bundle: Bundle,
    options: StoreAddOptions,
    about: tuple[dict[str, str], Machine],
    progress: Progress,
) -> AddedRun:
    from tracemap.attribution.attribute import Request, joined
    from tracemap.machine.images import read_images
    from tracemap.store.adding import Said, add_run
    from tracemap.store.model import AddedRun

    tags, machine = about
    request = Request(
        bundle.graph,
        bundle.map_sha256,
        [run],
        options.rule,
        options.allow_mismatch,
        partial(read_images, bundle.module_path),
        keep_disturbed=options.keep_disturbed,
        memory_mb=options.memory,
    )
    content = path if path.is_file() else run.table
    model = options.model or bundle.path.resolve().stem
    said = Said(content=content, model=model, tags=tags, machine=machine, added_ns=time.time_ns())
    with joined(request) as made:
        _keep_map(store, bundle, said, progress)
        added = add_run(store, bundle.graph, made, said)
    return AddedRun(str(path), added.name, model, not added.was_there)


def _keep_map(store: Store, bundle: Bundle, said: Said, progress: Progress) -> None:
    """Keep a bundle's map where it is not yet, its ops matched with those of the newest map of the same model."""
    from tracemap.store.layout import OPS
    from tracemap.store.lineage import keep_map

    if store.map_file(OPS, bundle.map_sha256).exists():
        return
    progress("matching its ops with those of earlier maps")
    keep_map(store, bundle, _keys(store, bundle, said.model))


def _keys(store: Store, bundle: Bundle, model: str) -> Keys:
    from tracemap.store.headers import read_headers
    from tracemap.store.layout import OPS, RUNS
    from tracemap.store.lineage import SAME, kept_bundle, read_ops

    if not (store.root / RUNS).is_dir():
        return {}
    headers = read_headers(store, skip_bad=True)
    there = headers.listing.files[OPS]
    earlier = [row for row in headers.rows if row["model"] == model and row["map"] in there]
    if not earlier:
        return {}
    newest = max(earlier, key=lambda row: (row["added_ns"], row["run"]))["map"]
    key_of = {row["op"]: row["key"] for row in read_ops(headers.listing, newest)}
    with kept_bundle(headers.listing, newest) as before:
        matched = _matched(before, bundle)
    if matched is None:
        return {op: (key, SAME) for op, key in key_of.items()}
    return {after: (key_of[one], how) for one, after, how in matched if one in key_of}


def _matched(before: Bundle | None, bundle: Bundle) -> list[tuple[str, str, str]] | None:
    """The ops of a kept map and those of a bundle that they are; None: both are of the same text."""
    from tracemap.session.diff import matched_models

    if before is None:
        return []
    found = matched_models(before, bundle)
    return None if found is None else [(str(each.before), str(each.after), each.how.value) for each in found]


def _tags(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UsageInvalid(f"--tag {text}: is no tag; write NAME=VALUE, such as branch=main")
        if found.setdefault(name, value) != value:
            raise UsageInvalid(f"--tag {text}: {name} is said to be {found[name]} as well; say it once")
    return found


def _recorded_ns(text: str | None) -> int | None:
    """A time as it is typed, which is UTC where it does not say otherwise."""
    if text is None:
        return None
    try:
        told = datetime.fromisoformat(text)
        seconds = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageInvalid(f"--recorded {text}: is no time; write 2026-11-20 or 2026-11-20T02:30:00Z") from error
    if seconds < 0:
        raise UsageInvalid(f"--recorded {text}: lies before 1970, when nothing was recorded")
    return round(seconds) * _NANOSECONDS


def _machine(run: Run, options: StoreAddOptions, recorded_ns: int | None) -> Machine:
    """The machine of a run: what it tells itself is not said otherwise.

    Raises:
        UsageInvalid: it is.
    """
    machine = run.header.machine
    given = {"host": options.host, "cpu_model": options.cpu_model, "recorded_ns": recorded_ns}
    for name, value in given.items():
        told = getattr(machine, name)
        if value is not None and told is not UNKNOWN and told != value:
            flag = {"host": "--host", "cpu_model": "--cpu-model", "recorded_ns": "--recorded"}[name]
            raise UsageInvalid(f"{flag}: {run.table.name} tells it itself ({told}); leave {flag} out")
    return structs.replace(machine, **{name: value for name, value in given.items() if value is not None})


# ---- asking


def asked(options: AskOptions) -> Headers:
    """The runs that a question is about.

    Raises:
        StoreInvalid: there is no store, or a file that is none of its tables.
        UsageInvalid: a condition is none, or no run is as it says.
    """
    from tracemap.store.headers import read_headers
    from tracemap.store.layout import Store
    from tracemap.store.selection import conditions

    wanted = conditions(options.where)
    headers = read_headers(Store(options.store), skip_bad=options.skip_bad)
    chosen = headers.chosen(wanted)
    if not chosen.rows:
        named = " ".join(f"--where {text}" for text in options.where)
        raise UsageInvalid(f"no run of {len(headers.rows)} in {options.store} is as asked for {named}".rstrip())
    return chosen


def store_query(options: StoreQueryOptions, progress: Progress = no_progress) -> FleetCosts:
    """What ops cost over the runs of a store.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run is as asked for, or has a metric; there is no such column.
        ToolMissing: Spark is not installed.
    """
    from tracemap.store.costs import Question, fleet_costs
    from tracemap.store.layout import ASIDE, CALLS, COSTS, TARGETS
    from tracemap.store.lineage import read_names
    from tracemap.store.selection import check_column

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    question = Question(options.group_by, options.metric, options.calls)
    headers = asked(options)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    with _engine(options.engine, options.memory, progress) as engine:
        try:
            found = fleet_costs(engine, headers, names, question)
        except StoreInvalid:
            tables = (CALLS, TARGETS, ASIDE, COSTS) if options.calls else (COSTS,)
            found = fleet_costs(engine, _without_damaged(headers, tables, options), names, question)
    if options.output is not None:
        write_shown(partial(show_costs, found, options), options.output)
    return found


def store_trend(options: StoreTrendOptions, progress: Progress = no_progress) -> FleetTrends:
    """What became slower or faster over the runs of a store, since when, on which processors; hosts unlike others.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run is as asked for, has the metric, or tells when and where it was recorded.
        TargetExists, TargetUnwritable: an output cannot be written.
    """
    from tracemap.store.asking import fleet_trends
    from tracemap.store.engine import duck_engine
    from tracemap.store.lineage import read_names

    check_files(options.output, options.html, force=options.force)
    headers = asked(options)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    progress("looking for changes")
    with duck_engine(options.memory, progress) as engine:
        found = fleet_trends(engine, headers, names, options.metric, options.over, 1 + options.threshold / 100)
    if options.html is not None:
        from tracemap.reports.fleet.render import write_trends_page

        write_trends_page(found, options.html, force=options.force)
    if options.output is not None:
        write_shown(partial(show_trends, found, options), options.output)
    return found


def store_compare(options: StoreCompareOptions, progress: Progress = no_progress) -> FleetComparison:
    """Which ops cost more or less in some runs of a store than in others, on which processors.

    Raises:
        StoreInvalid, UsageInvalid: as `store_trend`; or a run is of both sides.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.asking import fleet_comparison
    from tracemap.store.engine import duck_engine
    from tracemap.store.lineage import read_names
    from tracemap.store.selection import conditions

    check_files(options.output, force=options.force)
    headers = asked(options)
    sides = []
    for name, texts in (("--before", options.before), ("--after", options.after)):
        side = headers.chosen(conditions(texts))
        if not side.rows:
            raise UsageInvalid(f"{name} {' '.join(texts)}: no run of {len(headers.rows)} is as asked for")
        sides.append(side)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    progress("comparing")
    with duck_engine(options.memory, progress) as engine:
        both = sides[0], sides[1]
        found = fleet_comparison(engine, both, names, options.metric, 1 + options.threshold / 100)
    if options.output is not None:
        write_shown(partial(show_comparison, found, options), options.output)
    return found


def _without_damaged(headers: Headers, tables: Sequence[str], options: AskOptions) -> Headers:
    """The runs of which all files can be read, after a question has failed.

    Raises:
        StoreInvalid: a file cannot be read, and is not to be left out; or no file is to blame: what has failed already.
    """
    from tracemap.store.headers import check_readable, damaged

    found = damaged(headers, tables)
    if not found:
        raise  # noqa: PLE0704 - the error that is being handled
    left = headers.without(found)
    if not options.skip_bad:
        check_readable(left.listing)
    return left


def store_list(options: StoreListOptions) -> FleetRuns:
    """The runs of a store.

    Raises:
        StoreInvalid, UsageInvalid: as `store_query` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.listing import fleet_runs

    check_files(options.output, force=options.force)
    found = fleet_runs(asked(options))
    if options.output is not None:
        write_shown(partial(show_list, found, options), options.output)
    return found


@contextmanager
def _engine(name: str, memory_mb: int, progress: Progress) -> Iterator[Engine]:
    if name == "duckdb":
        from tracemap.store.engine import duck_engine

        with duck_engine(memory_mb, progress) as engine:
            yield engine
        return
    from tracemap.store.spark import spark_engine

    with spark_engine(name, memory_mb, progress) as on_spark:
        yield on_spark


# ---- showing


def show_added(added: FleetAdded, options: StoreAddOptions, out: TextIO) -> None:
    """Write what was added."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.fleet import print_added

        print_added(added, stream)

    show_as(options.format, out, text, lambda: added)


def show_list(found: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import runs_csv

            stream.write(runs_csv(found))
        else:
            from tracemap.reports.terminal.fleet import print_runs

            print_runs(found, stream)

    show_as(options.format, out, text, lambda: found)


def show_costs(found: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write what ops cost over runs, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import costs_csv

            stream.write(costs_csv(found))
        else:
            from tracemap.reports.terminal.fleet import print_costs

            print_costs(found, stream, options)

    show_as(options.format, out, text, lambda: found)


def show_trends(found: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write what changed in a fleet, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import trends_csv

            stream.write(trends_csv(found))
        else:
            from tracemap.reports.terminal.fleet_changes import print_trends

            print_trends(found, stream)

    show_as(options.format, out, text, lambda: found)


def show_comparison(found: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write what differs between two sets of runs, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import comparison_csv

            stream.write(comparison_csv(found))
        else:
            from tracemap.reports.terminal.fleet_changes import print_comparison

            print_comparison(found, stream)

    show_as(options.format, out, text, lambda: found)
