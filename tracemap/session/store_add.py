"""`store add`: add runs to a store with their bundles' maps, and match the ops with those of earlier maps."""

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
from tracemap.session.runs import attribution_request, check_named_once, find_bundle, opened_runs, resolved_runs
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
    """Add runs to a store. The first run creates the store; a run that the store already has is not added again.

    Raises:
        TracemapError: see `session.attribute.attribute`.
        UsageInvalid: a tag or time is invalid.
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
    store, added_runs = store_at(options.store), []
    for path in runs:
        with opened_runs([path], dispatch=options.dispatch) as (opened,):
            run_bundle = bundle or load(find_bundle(opened, path))
            progress(f"adding {path}")
            machine = _machine(opened, options, recorded_ns)
            images = cache(partial(read_images, run_bundle.module_path))
            with resolved_runs([opened], run_bundle.graph, images) as (run,):
                file = path if isinstance(opened.copy, Unknown) else opened.copy
                number = number_of(run_bundle.map_sha256, run.header, file, options.dispatch)
                model = storable(options.model or run_bundle.path.resolve().stem)
                facts = Said(number=number, model=model, tags=tags, machine=machine, added_ns=time.time_ns())
                request = attribution_request(run_bundle, [run], options, images)
                model, added = _add(store, run_bundle, request, facts, progress)
            added_runs.append(AddedRun(str(path), added.name, model, not added.was_there))
    return FleetAdded(runs=tuple(added_runs))


def _add(store: Store, bundle: Bundle, request: Request, facts: Said, progress: Progress) -> tuple[str, Added]:
    """Add one run to a store, and return its model's name; a run that the store already has is not joined."""
    from tracemap.attribution.attribute import check_runs, joined
    from tracemap.store.adding import Added, add_run, is_there
    from tracemap.store.layout import run_name

    if is_there(store, facts):
        check_runs(request.graph, request.runs, allow_mismatch=request.allow_mismatch)
        model = _stored_model(store, facts)
        keep_bundle(store, bundle, replace(facts, model=model), progress)  # the store may have lost the map
        return model, Added(run_name(facts.number), was_there=True)
    with joined(request) as join:
        keep_bundle(store, bundle, facts, progress)
        return facts.model, add_run(store, bundle.graph, join, facts)


def _stored_model(store: Store, facts: Said) -> str:
    """Model name of a run that the store already has; it may have been added under another name."""
    from tracemap.store.adding import has_header
    from tracemap.store.headers import read_headers
    from tracemap.store.layout import run_name

    if has_header(store, facts):
        return facts.model
    rows = read_headers(store, skip_bad=True).rows
    return next((row["model"] for row in rows if row["run"] == run_name(facts.number)), facts.model)


def keep_bundle(store: Store, bundle: Bundle, facts: Said, progress: Progress) -> None:
    """Add a bundle's map to the store if it is new, and match its ops with the newest map of the same model.

    Raises:
        StoreInvalid: the store's files of the newest map are lost or damaged.
        UsageInvalid: the ops cannot be matched, since the text of one of the models is missing.
        TargetUnwritable: the store cannot be written.
    """
    from tracemap.store.lineage import keep_map, keep_ops

    has_map = store.map_file(bundle.map_sha256).exists()
    has_ops = store.ops_file(facts.model, bundle.map_sha256).exists()
    if not has_ops:
        progress("matching ops with those of earlier maps")
    keys = {} if has_ops else _keys(store, bundle, facts.model)
    if not has_map:
        keep_map(store, bundle)
    if not has_ops:
        keep_ops(store, bundle, facts.model, keys)


def _keys(store: Store, bundle: Bundle, model: str) -> Keys:
    """Keys of the ops of a map that is new to the store.

    Raises:
        StoreInvalid: the store's files of the model's newest map are lost or damaged. Without them, ops would get keys
            of different ops, or new keys.
    """
    from tracemap.session.diff import matched_models
    from tracemap.store.headers import check_readable
    from tracemap.store.layout import MAPS, OPS, ops_name
    from tracemap.store.lineage import SAME, first_keys, kept_bundle, read_ops

    if not store.has_runs():
        return first_keys(bundle.graph)
    listing, rows = _earlier(store, bundle, model)
    if not rows:
        bad = tuple(file for file in listing.bad if store.is_of_model(file.path, model))
        check_readable(replace(listing, bad=bad), "remove these files, and add their runs again first")
        return first_keys(bundle.graph)
    newest = max(rows, key=lambda row: (row["added_ns"], row["run"]))["map"]
    for table, name in ((OPS, ops_name(model, newest)), (MAPS, newest)):
        if name not in listing.files[table]:
            raise StoreInvalid(
                f"ops of {model} cannot be matched with those of earlier runs: {table}/{name}.parquet of the store is "
                "missing or damaged; remove it if it exists, and add one of its runs again first"
            )
    key_of = {row["op"]: row["key"] for row in read_ops(listing, model, newest)}
    with kept_bundle(listing, newest) as earlier_bundle:
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
    from tracemap.store.lineage import ALIKE, are_alike

    if not are_alike(before.graph, bundle.graph):
        raise UsageInvalid(
            f"{bundle.path}: its ops differ from those of the newest map of {model} in the store, and cannot be "
            "matched, since the text of one of the models is missing (--no-sources, or too large); choose another name "
            "with --model"
        )
    return {op: (key, ALIKE) for op, key in key_of.items()}


def _earlier(store: Store, bundle: Bundle, model: str) -> tuple[Listing, Sequence[Header]]:
    """Listing of the store, and the headers of the model's runs with other maps."""
    from tracemap.store.headers import read_headers

    headers = read_headers(store, skip_bad=True)
    return headers.listing, [row for row in headers.rows if row["model"] == model and row["map"] != bundle.map_sha256]


def _tags(texts: Sequence[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise UsageInvalid(f"--tag {text}: is not a tag; write NAME=VALUE, such as branch=main")
        if tags.setdefault(name, storable(value)) != storable(value):
            raise UsageInvalid(f"--tag {text}: {name} is also set to {tags[name]}; set it once")
    return tags


def _recorded_ns(text: str | None) -> int | None:
    """Parse a time in ISO 8601; without a time zone, it is UTC."""
    if text is None:
        return None
    from tracemap.measurements.model import recorded_at

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageInvalid(f"--recorded {text}: is not a time; write 2026-11-20 or 2026-11-20T02:30:00Z") from error
    nanoseconds = recorded_at(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if nanoseconds is UNKNOWN:
        raise UsageInvalid(f"--recorded {text}: is before 1970 or after 2262; correct the year")
    return nanoseconds


def _machine(run: Run, options: StoreAddOptions, recorded_ns: int | None) -> Machine:
    """The run's machine, completed with the options.

    Raises:
        UsageInvalid: an option contradicts the run's header.
    """
    machine = run.header.machine
    texts = {"host": options.host, "cpu_model": options.cpu_model}
    from_options = {name: value and storable(value) for name, value in texts.items()} | {"recorded_ns": recorded_ns}
    for name, value in from_options.items():
        recorded = getattr(machine, name)
        if value is not None and recorded is not UNKNOWN and recorded != value:
            flag = {"host": "--host", "cpu_model": "--cpu-model", "recorded_ns": "--recorded"}[name]
            raise UsageInvalid(f"{flag}: {run.file_name} has a different value itself ({recorded}); leave {flag} out")
    return structs.replace(machine, **{name: value for name, value in from_options.items() if value is not None})


def show_added(added: FleetAdded, options: StoreAddOptions, out: TextIO) -> None:
    """Write the list of added runs to a stream, in the format of the options."""

    def text(stream: TextIO) -> None:
        from tracemap.reports.terminal.fleet import print_added

        print_added(added, stream)

    show_as(options.format, out, text, lambda: added)
