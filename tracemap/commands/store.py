"""`tracemap store`: many runs in one place, and queries over all of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import click
from msgspec import structs

from tracemap.commands.framework import PATH, HelpContext, options_command
from tracemap.commands.runs import (
    attribution_request,
    check_named_once,
    find_bundle,
    opened_runs,
    resolved_runs,
    runs_of_bundles,
)
from tracemap.commands.streams import print_message, print_next, show_in_format, show_phases
from tracemap.core.codec import escape_surrogates
from tracemap.core.errors import StoreInvalid, UsageInvalid
from tracemap.core.files import check_files, write_output_of, write_text
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, Unknown
from tracemap.options.store import (
    AskOptions,
    StoreAddOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)

if TYPE_CHECKING:
    from tracemap.attribution.attribute import Request
    from tracemap.map.bundle import Bundle
    from tracemap.runs.model import Machine, Run
    from tracemap.store.adding import RunDescription
    from tracemap.store.folder import Place
    from tracemap.store.layout import Store
    from tracemap.store.lineage import Keys
    from tracemap.store.model import StoreAdded, StoreCalls, StoreComparison, StoreCosts, StoreRuns, StoreTrends
    from tracemap.store.query_engines import Engine
    from tracemap.store.run_headers import Headers

    Answer = StoreRuns | StoreCosts | StoreCalls | StoreTrends | StoreComparison


# ---- store add
#
# `store add`: add runs to a store with their bundles' maps, and match the ops with those of earlier maps.


def store_add(
    runs: Sequence[Path], bundle: Bundle | None, options: StoreAddOptions, progress: Progress = no_progress
) -> StoreAdded:
    """Add runs to a store. The first run creates the store; a run that the store already has is not added again.

    Raises:
        TracemapError: see `commands.attribute.attribute`.
        UsageInvalid: a tag or time is invalid.
        TargetUnwritable: the store cannot be written.
    """
    from tracemap.machine.images import read_images
    from tracemap.map.bundle import load
    from tracemap.store.adding import RunDescription, run_number_of
    from tracemap.store.layout import run_name, store_at
    from tracemap.store.model import AddedRun, StoreAdded

    if not runs:
        raise UsageInvalid("name at least one run")
    check_named_once(runs)
    tags, recorded_ns = _tags(options.tag), _recorded_ns(options.recorded)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    store, added_runs = store_at(options.store), []
    for path in runs:
        with opened_runs([path], dispatch=options.dispatch) as (opened,):
            run_bundle = bundle or load(find_bundle(opened, path))
            progress(f"adding {path}")
            machine = _machine(opened, options, recorded_ns)
            images = cache(partial(read_images, run_bundle.module_path))
            with resolved_runs([opened], run_bundle.graph, images) as (run,):
                file = path if isinstance(opened.copy, Unknown) else opened.copy
                number = run_number_of(run_bundle.map_sha256, run.header, file, options.dispatch)
                model = escape_surrogates(options.model or run_bundle.path.resolve().stem)
                facts = RunDescription(number=number, model=model, tags=tags, machine=machine, added_ns=time.time_ns())
                request = attribution_request(run_bundle, [run], options, images)
                model, is_new = _add(store, run_bundle, request, facts, progress)
            added_runs.append(AddedRun(str(path), run_name(number), model, is_new))
    return StoreAdded(runs=tuple(added_runs))


def _add(store: Store, bundle: Bundle, request: Request, facts: RunDescription, progress: Progress) -> tuple[str, bool]:
    """Add one run to a store. Returns its model's name, and False if the store has it: such a run is not joined."""
    from tracemap.attribution.attribute import check_runs, open_attribution
    from tracemap.store.adding import add_run, is_complete

    if is_complete(store, facts):
        check_runs(request.graph, request.runs, allow_mismatch=request.allow_mismatch)
        model = _stored_model(store, facts)
        keep_bundle(store, bundle, replace(facts, model=model), progress)  # the store may have lost the map
        return model, False
    with open_attribution(request) as join:
        keep_bundle(store, bundle, facts, progress)
        return facts.model, add_run(store, bundle.graph, join, facts)


def _stored_model(store: Store, facts: RunDescription) -> str:
    """Model name of a run that the store already has; it may have been added under another name."""
    from tracemap.store.adding import has_header
    from tracemap.store.layout import run_name
    from tracemap.store.run_headers import read_headers

    if has_header(store, facts):
        return facts.model
    rows = read_headers(store, skip_bad=True).rows
    return next((row["model"] for row in rows if row["run"] == run_name(facts.number)), facts.model)


def keep_bundle(store: Store, bundle: Bundle, facts: RunDescription, progress: Progress) -> None:
    """Add a bundle's map to the store if it is new, and match its ops with the newest map of the same model.

    Raises:
        StoreInvalid: the store's files of the newest map are lost or damaged.
        UsageInvalid: the ops cannot be matched, since the text of one of the models is missing.
        TargetUnwritable: the store cannot be written.
    """
    from tracemap.store.lineage import store_map, store_ops

    has_map = store.map_file(bundle.map_sha256).exists()
    has_ops = store.ops_file(facts.model, bundle.map_sha256).exists()
    if not has_ops:
        progress("matching ops with those of earlier maps")
    keys = {} if has_ops else _keys(store, bundle, facts.model)
    if not has_map:
        store_map(store, bundle)
    if not has_ops:
        store_ops(store, bundle, facts.model, keys)


def _keys(store: Store, bundle: Bundle, model: str) -> Keys:
    """Keys of the ops of a map that is new to the store.

    Raises:
        StoreInvalid: the store's files of the model's newest map are lost or damaged. Without them, ops would get keys
            of different ops, or new keys.
    """
    from tracemap.commands.diff import matched_models
    from tracemap.store.layout import MAPS, OPS, ops_name
    from tracemap.store.lineage import SAME, keys_of_first_map, read_ops, restored_bundle
    from tracemap.store.run_headers import check_readable, read_headers

    if not store.has_runs():
        return keys_of_first_map(bundle.graph)
    headers = read_headers(store, skip_bad=True)
    listing = headers.listing
    rows = [row for row in headers.rows if row["model"] == model and row["map"] != bundle.map_sha256]
    if not rows:
        bad = tuple(file for file in listing.bad if store.is_of_model(file.path, model))
        check_readable(replace(listing, bad=bad), "remove these files, and add their runs again first")
        return keys_of_first_map(bundle.graph)
    newest = max(rows, key=lambda row: (row["added_ns"], row["run"]))["map"]
    for table, name in ((OPS, ops_name(model, newest)), (MAPS, newest)):
        if name not in listing.files[table]:
            raise StoreInvalid(
                f"ops of {model} cannot be matched with those of earlier runs: {table}/{name}.parquet of the store is "
                "missing or damaged; remove it if it exists, and add one of its runs again first"
            )
    key_of = {row["op"]: row["key"] for row in read_ops(listing, model, newest)}
    with restored_bundle(listing, newest) as earlier_bundle:
        if not (earlier_bundle.model() and bundle.model()):
            return _keys_of_equal_maps(earlier_bundle, bundle, model, key_of)
        matched = matched_models(earlier_bundle, bundle)
    if matched is None:
        return {op: (key, SAME) for op, key in key_of.items()}
    return {
        str(match.after): (key_of[str(match.before)], match.how.value)
        for match in matched
        if str(match.before) in key_of
    }


def _keys_of_equal_maps(before: Bundle, bundle: Bundle, model: str, key_of: Mapping[str, str]) -> Keys:
    """Keys of the ops of a map, if the text of its model or of the earlier one is missing.

    Raises:
        UsageInvalid: the ops of both maps differ. They cannot be matched, and keys are permanent.
    """
    from tracemap.store.lineage import ALIKE, have_equal_ops

    if not have_equal_ops(before.graph, bundle.graph):
        raise UsageInvalid(
            f"{bundle.path}: its ops differ from those of the newest map of {model} in the store, and cannot be "
            "matched, since the text of one of the models is missing (--no-sources, or too large); choose another name "
            "with --model"
        )
    return {op: (key, ALIKE) for op, key in key_of.items()}


def _tags(texts: Sequence[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UsageInvalid(f"--tag {text}: is not a tag; write NAME=VALUE, such as branch=main")
        if tags.setdefault(name, escape_surrogates(value)) != escape_surrogates(value):
            raise UsageInvalid(f"--tag {text}: {name} is also set to {tags[name]}; set it once")
    return tags


def _recorded_ns(text: str | None) -> int | None:
    """Parse a time in ISO 8601; without a time zone, it is UTC."""
    if text is None:
        return None
    from tracemap.runs.model import recorded_at

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageInvalid(f"--recorded {text}: is not a time; write 2026-11-20 or 2026-11-20T02:30:00Z") from error
    nanoseconds = recorded_at(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if nanoseconds is UNKNOWN:
        raise UsageInvalid(f"--recorded {text}: is before 1970 or after 2262; correct the year")
    return nanoseconds


def _machine(run: Run, options: StoreAddOptions, recorded_ns: int | None) -> Machine:
    """The run's machine, completed with the options; reject options that contradict the run's header."""
    machine = run.header.machine
    texts = {"host": options.host, "cpu_model": options.cpu_model}
    from_options = {name: value and escape_surrogates(value) for name, value in texts.items()} | {
        "recorded_ns": recorded_ns
    }
    for name, value in from_options.items():
        recorded = getattr(machine, name)
        if value is not None and recorded is not UNKNOWN and recorded != value:
            flag = {"host": "--host", "cpu_model": "--cpu-model", "recorded_ns": "--recorded"}[name]
            raise UsageInvalid(f"{flag}: {run.file_name} has a different value itself ({recorded}); leave {flag} out")
    return structs.replace(machine, **{name: value for name, value in from_options.items() if value is not None})


# ---- queries
#
# Queries over the runs of a store. `Raises` of `store_query` holds for all of them.


_AnswerT = TypeVar("_AnswerT", bound="Answer")


def show_answer(answer: Answer, options: AskOptions, out: TextIO) -> None:
    """Write the answer of a query to a stream, in the format of the options. JSON imports no other format."""

    def text(stream: TextIO) -> None:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import store as texts

        settings: dict[str, object] = {}
        if isinstance(options, StoreQueryOptions):
            settings = {"options": options}
        elif isinstance(options, StoreSitesOptions):
            settings = {"top": options.top}
        writers: Mapping[str, tuple[Callable[..., str], Callable[..., None]]] = {
            "store-runs": (tables.runs_csv, texts.print_runs),
            "store-costs": (tables.costs_csv, texts.print_costs),
            "store-calls": (tables.sites_csv, texts.print_sites),
            "store-trends": (tables.trends_csv, texts.print_trends),
            "store-comparison": (tables.comparison_csv, texts.print_comparison),
        }
        table, print_answer = writers[answer.kind]
        if options.format == "csv":
            stream.write(table(answer))
        else:
            print_answer(answer, stream, **settings)

    show_in_format(options.format, out, text, lambda: answer)


def select_runs(options: AskOptions) -> Headers:
    """Runs that meet the conditions of a query.

    Raises:
        StoreInvalid: there is no store, or it contains a foreign file.
        UsageInvalid: a condition is invalid, or no run meets all conditions.
    """
    from tracemap.store.layout import store_at
    from tracemap.store.run_headers import parse_conditions, read_headers

    conditions = parse_conditions(options.where)
    headers = read_headers(store_at(options.store), skip_bad=options.skip_bad)
    chosen = headers.chosen(conditions)
    if not chosen.rows:
        conditions_text = " ".join(f"--where {text}" for text in options.where)
        matching = f" matches {conditions_text}" if conditions_text else " can be read"
        raise UsageInvalid(f"none of the {len(headers.rows)} runs in {options.store}{matching}")
    return chosen


def store_query(options: StoreQueryOptions, progress: Progress = no_progress) -> StoreCosts:
    """Costs of ops over the runs of a store.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run meets the conditions or has the metrics, or a column does not exist.
        ToolMissing: Spark is not installed.
        TargetExists, TargetUnwritable: an output cannot be written.
    """
    from tracemap.store.costs import Question, query_costs
    from tracemap.store.layout import ASIDE, CALLS, COSTS, OPS, TARGETS
    from tracemap.store.lineage import read_names

    headers = _checked(options, *options.group_by)
    question = Question(options.group_by, options.metric, options.calls)
    tables = (OPS, CALLS, TARGETS, ASIDE, COSTS) if options.calls else (OPS, COSTS)

    def ask(engine: Engine, runs: Headers) -> StoreCosts:
        return query_costs(engine, runs, read_names(runs.listing, runs.maps_of_models), question)

    return _written(_answer(options, progress, tables, ask, headers), options)


def store_sites(options: StoreSitesOptions, progress: Progress = no_progress) -> StoreCalls:
    """Percentiles of call times per dispatch site over the runs of a store.

    Raises:
        TracemapError: see `store_query`.
    """
    from tracemap.store.costs import query_calls
    from tracemap.store.layout import CALLS, TARGETS
    from tracemap.store.lineage import Names

    headers = _checked(options, *options.group_by)

    def ask(engine: Engine, runs: Headers) -> StoreCalls:
        return query_calls(engine, runs, Names({}, ()), options.metric, options.group_by)

    return _written(_answer(options, progress, (CALLS, TARGETS), ask, headers), options)


def store_trend(options: StoreTrendOptions, progress: Progress = no_progress) -> StoreTrends:
    """Ops that became slower or faster over the runs of a store, since which night and on which processors.

    Also lists hosts that differ from others with the same processor.

    Raises:
        TracemapError: see `store_query`.
        UsageInvalid: no run has the time and machine of its recording.
    """
    from tracemap.store.layout import COSTS, OPS, SPREADS
    from tracemap.store.lineage import read_names
    from tracemap.store.queries import query_trends

    check_files(options.output, options.html, options.svg, force=options.force)
    headers = select_runs(options)
    progress("looking for changes")

    def ask(engine: Engine, runs: Headers) -> StoreTrends:
        names = read_names(runs.listing, runs.maps_of_models)
        return query_trends(engine, runs, names, options.metric, options.over, 1 + options.threshold / 100)

    answer = _answer(options, progress, (OPS, COSTS, SPREADS), ask, headers)
    if options.html is not None:
        from tracemap.reports.trends_page import write_trends_page

        write_trends_page(answer, options.html, force=options.force)
    if options.svg is not None:
        from tracemap.reports.trend_badge import trend_badge

        write_text(trend_badge(answer, options.threshold), options.svg)
    return _written(answer, options)


def store_compare(options: StoreCompareOptions, progress: Progress = no_progress) -> StoreComparison:
    """Ops that cost more or less in some runs of a store than in others, and on which processors.

    Raises:
        TracemapError: see `store_trend`.
        UsageInvalid: a run is on both sides.
    """
    from tracemap.store.layout import COSTS, OPS, SPREADS
    from tracemap.store.lineage import read_names
    from tracemap.store.queries import query_comparison

    headers = _checked(options)
    sides = _side(headers, "--before", options.before), _side(headers, "--after", options.after)
    progress("comparing")

    def ask(engine: Engine, before: Headers, after: Headers) -> StoreComparison:
        maps = {*before.maps_of_models, *after.maps_of_models}
        names = read_names(before.listing, [key for key in headers.maps_of_models if key in maps])
        return query_comparison(engine, (before, after), names, options.metric, 1 + options.threshold / 100)

    return _written(_answer(options, progress, (OPS, COSTS, SPREADS), ask, *sides), options)


def store_list(options: StoreListOptions) -> StoreRuns:
    """Runs of a store, with the data of their headers.

    Raises:
        TracemapError: see `store_query`.
    """
    from tracemap.store.series import list_runs

    return _written(list_runs(_checked(options)), options)


def _checked(options: AskOptions, *columns: str) -> Headers:
    """The selected runs, after a check of the output and of the columns to group by."""
    from tracemap.store.run_headers import check_column

    check_files(options.output, force=options.force)
    for column in columns:
        check_column(column)
    return select_runs(options)


def _side(headers: Headers, name: str, texts: Sequence[str]) -> Headers:
    """Runs of one side of a comparison; reject conditions that no run meets."""
    from tracemap.store.run_headers import parse_conditions

    side = headers.chosen(parse_conditions(texts))
    if not side.rows:
        raise UsageInvalid(f"{name} {' '.join(texts)}: none of the {len(headers.rows)} runs matches")
    return side


def _answer(
    options: AskOptions, progress: Progress, tables: Sequence[str], ask: Callable[..., _AnswerT], *sides: Headers
) -> _AnswerT:
    """Answer a query over tables of one or more sets of runs. With `--skip-bad`, repeat it without damaged files.

    Raises:
        StoreInvalid: a file cannot be read and `--skip-bad` is not set, no run is left without it, or the query fails
            although all files can be read.
    """
    from tracemap.store.run_headers import check_readable, find_damaged_files

    with _engine(options, sides[0].listing.place, progress) as engine:
        try:
            return ask(engine, *sides)
        except StoreInvalid:
            bad_files = [bad for side in sides for bad in find_damaged_files(side, tables)]
            if not bad_files:
                raise
        left = [side.without(bad_files) for side in sides]
        if not options.skip_bad:
            check_readable(left[0].listing)
        if not all(side.rows for side in left):
            check_readable(left[0].listing, "no run without damaged files is left; add runs again")
        return ask(engine, *left)


def _written(answer: _AnswerT, options: AskOptions) -> _AnswerT:
    """Write the answer if the options name an output, and return it."""
    if options.output is not None:
        write_output_of(partial(show_answer, answer, options), options.output)
    return answer


def _engine(options: AskOptions, place: Place, progress: Progress) -> AbstractContextManager[Engine]:
    from tracemap.store.query_engines import duck_engine, spark_engine

    if not isinstance(options, StoreQueryOptions | StoreSitesOptions) or options.engine == "duckdb":
        return duck_engine(options.memory, progress, place)
    if not place.local:
        raise UsageInvalid(
            f"--engine {options.engine}: Spark reads only stores in folders; leave --engine out for {place}"
        )
    return spark_engine(options.engine, options.memory, progress)


# ---- command line


class _Store(click.Group):
    """Commands of a store, in workflow order."""

    context_class = HelpContext

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order of their declaration."""
        return list(self.commands)


@click.group("store", cls=_Store)
def command() -> None:
    """Keep runs from many machines and nights in one store, and query what ops cost over all of them.

    \b
    Example:
      tracemap store add run.parquet --store nightly --tag branch=main
      tracemap store query --store nightly --group-by cpu_model,date
    """


@options_command("add", StoreAddOptions)
@click.argument("runs", metavar="RUN...", type=PATH, nargs=-1, required=True)
def add(runs: tuple[Path, ...], options: StoreAddOptions) -> None:
    """Add runs to a store, joined with their bundles. The first run creates the store.

    You can add any file that `tracemap attribute` reads. Files in a store are never modified, so many machines can add
    runs at once. A run that the store already has is not added again.

    \b
    Example:
      tracemap store add model.tracemap/runs/*.parquet --store nightly
      tracemap store add run.csv --map model.tracemap --store nightly --host ci-7
    """
    with show_phases("store add") as progress:
        added = store_add(runs_of_bundles(runs, print_message), None, options, progress)

    def text(out: TextIO) -> None:
        from tracemap.reports.terminal.store import print_added

        print_added(added, out)

    show_in_format(options.format, sys.stdout, text, lambda: added)
    if options.format == "text":
        print_next("store", "query", "--store", options.store)


@options_command("list", StoreListOptions)
def list_(options: StoreListOptions) -> None:
    """List the runs of a store, with the metadata from their headers.

    \b
    Example:
      tracemap store list --store nightly --where 'date>=2026-11-01'
      tracemap store list --store nightly --format csv
    """
    answer = store_list(options)
    if options.output is None:
        show_answer(answer, options, sys.stdout)


@options_command("query", StoreQueryOptions)
def query(options: StoreQueryOptions) -> None:
    """Show what ops cost over the runs of a store, per model and per value of the --group-by columns.

    The command adds up the sums that were stored with each run. --calls recomputes them from individual calls, which
    takes longer and gives the same numbers.

    \b
    Example:
      tracemap store query --store nightly
      tracemap store query --store nightly --group-by cpu_model,compiler
      tracemap store query --store nightly --where host=ci-7 --calls --format csv
    """
    _ask("store query", store_query, options)
    if options.output is not None:
        print_message(f"written: {options.output}")


@options_command("sites", StoreSitesOptions)
def sites(options: StoreSitesOptions) -> None:
    """Show percentiles of the call times of each dispatch site, over the runs of a store.

    Percentiles are exact up to 20 million calls. With more calls, they are accurate to 0.5 %, and the output says so.

    \b
    Example:
      tracemap store sites --store nightly --group-by cpu_model
    """
    _ask("store sites", store_sites, options)


@options_command("trend", StoreTrendOptions)
def trend(options: StoreTrendOptions) -> None:
    """Show which ops became slower or faster, since which night, and on which processors.

    Changes common to all ops of a run are removed first, so a slow night of a machine is not reported as a change of
    its ops. Only statistically significant changes are listed, corrected for the number of series
    examined. The output also lists hosts that differ from others with the same processor.

    \b
    Example:
      tracemap store trend --store nightly
      tracemap store trend --store nightly --over compiler --html week.html
      tracemap store trend --store nightly --where model=gpt2 --svg trend.svg
    """
    with show_phases("store trend") as progress:
        answer = store_trend(options, progress)
    if options.html is not None:
        print_message(f"page: {options.html}")
    if options.svg is not None:
        print_message(f"badge: {options.svg}")
    if options.output is None:
        show_answer(answer, options, sys.stdout)


@options_command("compare", StoreCompareOptions)
def compare(options: StoreCompareOptions) -> None:
    """Show which ops cost more or less in some runs than in others, for example in two nights.

    Each host is compared only with itself. Changes are listed per processor model.

    \b
    Example:
      tracemap store compare --store nightly \\
        --before date=2026-11-01 --after date=2026-11-02
    """
    _ask("store compare", store_compare, options)


_OptionsT = TypeVar("_OptionsT", bound=AskOptions)


def _ask(title: str, question: Callable[[_OptionsT, Progress], Answer], options: _OptionsT) -> None:
    with show_phases(title) as progress:
        answer = question(options, progress)
    if options.output is None:
        show_answer(answer, options, sys.stdout)


_LINES = {
    add: "Add runs to a store, joined with their bundles.",
    list_: "List the runs of a store.",
    query: "Show what ops cost over the runs of a store.",
    sites: "Show percentiles of the call times of each dispatch site.",
    trend: "Show which ops became slower or faster, and since when.",
    compare: "Show which ops cost more in some runs than in others.",
}
for _command, _line in _LINES.items():
    _command.short_help = _line
    command.add_command(_command)
