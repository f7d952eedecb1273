"""Runs put into a store, each with its bundle's map, whose ops are matched with those of earlier maps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import structs

from tracemap.codec import storable
from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.options.store import StoreAddOptions
from tracemap.outputs import show_as
from tracemap.session.runs import check_named_once, find_bundle, opened_runs, placed_runs, request_of
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Unknown

if TYPE_CHECKING:
    from tracemap.attribution.attribute import Request
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import Machine, Run
    from tracemap.store.adding import Added, Said
    from tracemap.store.headers import Header
    from tracemap.store.layout import Listing, Store
    from tracemap.store.lineage import Keys
    from tracemap.store.model import FleetAdded


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
    from tracemap.machine.images import read_images
    from tracemap.store.adding import Said, number_of
    from tracemap.store.layout import store_at
    from tracemap.store.model import AddedRun, FleetAdded

    if not runs:
        raise UsageInvalid("name at least one run")
    check_named_once(runs)
    tags, recorded_ns = _tags(options.tag), _recorded_ns(options.recorded)
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    store, found = store_at(options.store), []
    for path in runs:
        with opened_runs([path], dispatch=options.dispatch) as (opened,):
            of_run = bundle or load(find_bundle(opened, path))
            progress(f"adding {path}")
            machine = _machine(opened, options, recorded_ns)
            images = cache(partial(read_images, of_run.module_path))
            with placed_runs([opened], of_run.graph, images) as (run,):
                given = path if isinstance(opened.copy, Unknown) else opened.copy
                number = number_of(of_run.map_sha256, run.header, given, options.dispatch)
                model = storable(options.model or of_run.path.resolve().stem)
                said = Said(number=number, model=model, tags=tags, machine=machine, added_ns=time.time_ns())
                model, added = _add(store, of_run, request_of(of_run, [run], options, images), said, progress)
            found.append(AddedRun(str(path), added.name, model, not added.was_there))
    return FleetAdded(runs=tuple(found))


def _add(store: Store, bundle: Bundle, request: Request, said: Said, progress: Progress) -> tuple[str, Added]:
    """Put one run into a store, where nothing is joined for one that is there; returns the model that it is of."""
    from tracemap.attribution.attribute import check_runs, joined
    from tracemap.store.adding import Added, add_run, is_there
    from tracemap.store.layout import run_name

    if is_there(store, said):
        check_runs(request.graph, request.runs, allow_mismatch=request.allow_mismatch)
        model = _model_there(store, said)
        keep_bundle(store, bundle, replace(said, model=model), progress)  # which may have been lost
        return model, Added(run_name(said.number), was_there=True)
    with joined(request) as made:
        keep_bundle(store, bundle, said, progress)
        return said.model, add_run(store, bundle.graph, made, said)


def _model_there(store: Store, said: Said) -> str:
    """What the model of a run is called that is there already: it may have been added under another name."""
    from tracemap.store.adding import has_header
    from tracemap.store.headers import read_headers
    from tracemap.store.layout import run_name

    if has_header(store, said):
        return said.model
    rows = read_headers(store, skip_bad=True).rows
    return next((row["model"] for row in rows if row["run"] == run_name(said.number)), said.model)


def keep_bundle(store: Store, bundle: Bundle, said: Said, progress: Progress) -> None:
    """Keep a bundle's map where it is not yet, its ops matched with those of the newest map of the same model.

    Raises:
        StoreInvalid: what is kept of that map is lost or damaged.
        UsageInvalid: its ops cannot be matched, as the text of one of the models is not kept.
        TargetUnwritable: the store cannot be written.
    """
    from tracemap.store.lineage import keep_map, keep_ops

    has_map = store.map_file(bundle.map_sha256).exists()
    has_ops = store.ops_file(said.model, bundle.map_sha256).exists()
    if not has_ops:
        progress("matching its ops with those of earlier maps")
    keys = {} if has_ops else _keys(store, bundle, said.model)
    if not has_map:
        keep_map(store, bundle)
    if not has_ops:
        keep_ops(store, bundle, said.model, keys)


def _keys(store: Store, bundle: Bundle, model: str) -> Keys:
    """The keys of a map that is not kept yet.

    Raises:
        StoreInvalid: what is kept of the newest map of the model is lost or damaged. Without it ops would get keys that
            say that they are others, or none before them.
    """
    from tracemap.session.diff import matched_models
    from tracemap.store.headers import check_readable
    from tracemap.store.layout import MAPS, OPS, ops_name
    from tracemap.store.lineage import SAME, first_keys, kept_bundle, read_ops

    if not store.has_runs():
        return first_keys(bundle.graph)
    listing, rows = _earlier(store, bundle, model)
    if not rows:
        bad = tuple(each for each in listing.bad if store.is_of_model(each.path, model))
        check_readable(replace(listing, bad=bad), "take such files away, and add their runs again first")
        return first_keys(bundle.graph)
    newest = max(rows, key=lambda row: (row["added_ns"], row["run"]))["map"]
    for table, name in ((OPS, ops_name(model, newest)), (MAPS, newest)):
        if name not in listing.files[table]:
            raise StoreInvalid(
                f"ops of {model} cannot be matched with those before: {table}/{name}.parquet of the store is lost or "
                "damaged; take it away if it is there, and add one of its runs again first"
            )
    key_of = {row["op"]: row["key"] for row in read_ops(listing, model, newest)}
    with kept_bundle(listing, newest) as before:
        if not (before.model() and bundle.model()):
            return _keys_of_likes(before, bundle, model, key_of)
        matched = matched_models(before, bundle)
    if matched is None:
        return {op: (key, SAME) for op, key in key_of.items()}
    return {
        str(each.after): (key_of[str(each.before)], each.how.value) for each in matched if str(each.before) in key_of
    }


def _keys_of_likes(before: Bundle, bundle: Bundle, model: str, key_of: Mapping[str, str]) -> Keys:
    """The keys of a map where the text of its model, or of the one before, is not kept.

    Raises:
        UsageInvalid: its ops are others. Nothing tells which are which, and a key is for ever.
    """
    from tracemap.store.lineage import ALIKE, are_alike

    if not are_alike(before.graph, bundle.graph):
        raise UsageInvalid(
            f"{bundle.path}: its ops are not those of the newest map of {model} in the store, and cannot be matched "
            "with them: the text of one of the models is not kept (--no-sources, or too large); name another --model"
        )
    return {op: (key, ALIKE) for op, key in key_of.items()}


def _earlier(store: Store, bundle: Bundle, model: str) -> tuple[Listing, Sequence[Header]]:
    """What a store has, and the runs of a model that are of other maps."""
    from tracemap.store.headers import read_headers

    headers = read_headers(store, skip_bad=True)
    return headers.listing, [row for row in headers.rows if row["model"] == model and row["map"] != bundle.map_sha256]


def _tags(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UsageInvalid(f"--tag {text}: is no tag; write NAME=VALUE, such as branch=main")
        if found.setdefault(name, storable(value)) != storable(value):
            raise UsageInvalid(f"--tag {text}: {name} is said to be {found[name]} as well; say it once")
    return found


def _recorded_ns(text: str | None) -> int | None:
    """A time as it is typed, which is UTC where it does not say otherwise."""
    if text is None:
        return None
    from tracemap.measurements.model import recorded_at

    try:
        told = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageInvalid(f"--recorded {text}: is no time; write 2026-11-20 or 2026-11-20T02:30:00Z") from error
    nanoseconds = recorded_at(told if told.tzinfo else told.replace(tzinfo=UTC))
    if nanoseconds is UNKNOWN:
        raise UsageInvalid(f"--recorded {text}: lies before 1970 or behind 2262, when nothing was recorded")
    return nanoseconds


def _machine(run: Run, options: StoreAddOptions, recorded_ns: int | None) -> Machine:
    """The machine of a run: what it tells itself is not said otherwise.

    Raises:
        UsageInvalid: it is.
    """
    machine = run.header.machine
    words = {"host": options.host, "cpu_model": options.cpu_model}
    given = {name: value and storable(value) for name, value in words.items()} | {"recorded_ns": recorded_ns}
    for name, value in given.items():
        told = getattr(machine, name)
        if value is not None and told is not UNKNOWN and told != value:
            flag = {"host": "--host", "cpu_model": "--cpu-model", "recorded_ns": "--recorded"}[name]
            raise UsageInvalid(f"{flag}: {run.file_name} tells it itself ({told}); leave {flag} out")
    return structs.replace(machine, **{name: value for name, value in given.items() if value is not None})


def show_added(added: FleetAdded, options: StoreAddOptions, out: TextIO) -> None:
    """Write what was added."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.fleet import print_added

        print_added(added, stream)

    show_as(options.format, out, text, lambda: added)
