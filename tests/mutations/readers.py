"""Each kind of file that tracemap reads: which files are damaged, how, and how they are then read.

Files are read as users have them read, through the commands, but without a new process for each try.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.mutations import inputs
from tests.mutations.changes import (
    Change,
    changed_bytes,
    changed_csv,
    changed_json,
    changed_json_lines,
    changed_lines,
    changed_names,
    changed_words,
)
from tests.mutations.parquet import changed_parquet_header, changed_table
from tracemap.core.errors import TracemapError

Read = Callable[[Path, random.Random], None]


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of file, and how it is read."""

    name: str
    targets: tuple[tuple[str, Change], ...]
    """Patterns of the files of which one is damaged, below the folder of inputs, and the damage."""
    read: Read
    """Reads the folder's files; the dice choose how, where there are several ways."""

    def files(self, folder: Path) -> list[tuple[Path, Change]]:
        """The files that can be damaged; none where this machine could not make them."""
        return [(path, change) for pattern, change in self.targets for path in sorted(folder.glob(pattern))]


def run_command(*words: str | Path) -> None:
    """A command of tracemap, in this process, with an output that takes text as a terminal's does.

    Raises:
        TracemapError: what the command line would print as an error.
    """
    from tracemap.commands.main import group

    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        group.main([str(word) for word in words], standalone_mode=False)


def _read_bundle(folder: Path, dice: random.Random) -> None:
    bundle, run, page = folder / inputs.BUNDLE, folder / inputs.RUN, folder / "page.html"
    asked = dice.choice(("op6", "site0", "hand_mlp.mlir:11", "mlp_dispatch_0_matmul_32x256x784_f32"))
    commands: Sequence[tuple[str | Path, ...]] = (
        ("show", bundle),
        ("show", bundle, "--format", "json"),
        ("show", bundle, asked),
        ("audit", bundle),
        ("audit", bundle, "--format", "json"),
        ("attribute", run, "--map", bundle),
        ("attribute", run, "--map", bundle, "--format", dice.choice(("json", "csv")), "--rule", "model"),
        ("attribute", run, "--map", bundle, "--html", page, "--force"),
        ("report", bundle, "-o", page, "--force"),
        ("report", bundle, run, "-o", page, "--force"),
    )
    run_command(*dice.choices(commands, (4, 4, 4, 4, 4, 1, 1, 1, 1, 1))[0])  # the last five take many times as long


def _read_remarks(folder: Path, dice: random.Random) -> None:
    bundle = folder / inputs.BUNDLE
    commands: Sequence[tuple[str | Path, ...]] = (
        ("remarks", bundle, "--figures", "--top", "0"),
        ("remarks", bundle, folder / inputs.RUN, "--format", dice.choice(("text", "json"))),
        ("show", bundle, "op6", "--remarks"),
    )
    run_command(*dice.choice(commands))


def _read_compiled(folder: Path, dice: random.Random) -> None:
    bundle = folder / inputs.BUNDLE
    run_command("diff", bundle, bundle, "--format", dice.choice(("text", "json")))


def _read_timing(folder: Path, dice: random.Random) -> None:
    run_command("show", folder / inputs.BUNDLE, "--cost", "--format", dice.choice(("text", "json")))


def _read_numerics(folder: Path, dice: random.Random) -> None:
    arguments = ("--map", folder / inputs.BUNDLE, "--format", dice.choice(("text", "json", "csv")))
    run_command("attribute", folder / inputs.RUN, *arguments)


def _read_memory(folder: Path, dice: random.Random) -> None:
    without = dice.choice(((), ("--without", "op2"), ("--dim", "0")))
    run = dice.choice(((), (folder / inputs.RUN,)))
    run_command("memory", folder / inputs.BUNDLE, *run, "--format", dice.choice(("text", "json")), *without)


_WITH_COMMAND = 0.1
"""The part of the tries that a command reads, where what comes after the reading takes up to ten times as long."""


def _read_run(name: str, folder: Path, dice: random.Random) -> None:
    if dice.random() >= _WITH_COMMAND:
        _read_cells(folder / name)
        return
    # A run may name its own bundle; what it names then comes from the damaged file.
    named = ("--map", folder / inputs.BUNDLE) if dice.random() < 0.8 else ()
    form = dice.choice(("text", "json", "csv"))
    lax = ("--allow-mismatch",) if dice.random() < 0.5 else ()
    run_command("attribute", folder / name, *named, *lax, "--format", form)


def _read_cells(path: Path, kernel: str = "") -> None:
    """What a run says of itself, and all that was measured, as numbers."""
    from tracemap.attribution.scan.connection import Tables, value_of
    from tracemap.commands.runs import opened_runs
    from tracemap.runs.columns import events_sql
    from tracemap.runs.sql import query_database

    with opened_runs([path], dispatch=kernel) as (run,), query_database() as connection:
        values = ", ".join(f"sum({value_of(metric, run)})" for metric in run.metrics) or "count(*)"
        text = f"SELECT kind, {values} FROM ({events_sql(run)}) AS event WHERE NOT warmup GROUP BY ALL"
        Tables(connection, (run,), 0).query(text)


def changed_module(data: bytes, dice: random.Random) -> bytes:
    """Changes to one section or one header of the first ELF image, where chance alone would seldom hit."""
    from elftools.elf.elffile import ELFFile

    image = data.index(b"\x7fELF")
    elf = ELFFile(io.BytesIO(data[image:]))
    parts = [(int(section["sh_offset"]), int(section["sh_size"])) for section in elf.iter_sections()]
    parts += [(0, int(elf["e_ehsize"])), (int(elf["e_shoff"]), int(elf["e_shnum"]) * int(elf["e_shentsize"]))]
    offset, size = dice.choice([part for part in parts if part[1]])
    begin, end = image + offset, image + offset + size
    return data[:begin] + changed_bytes(data[begin:end], dice) + data[end:]


def _read_export(folder: Path, dice: random.Random) -> None:
    from tracemap.runs.ireeprof.calls import KnownCalls
    from tracemap.runs.ireeprof.profile import read_export
    from tracemap.runs.sql import open_database

    with open_database() as connection:
        profile = read_export(folder / inputs.EXPORT, connection, known=KnownCalls(warmup=dice.randrange(3)))
        profile.events.in_order().fetchall()


def _read_flags(folder: Path, _dice: random.Random) -> None:
    from tracemap.capture.calling import check_files, read_flags, sorted_out

    check_files(sorted_out(read_flags(folder / inputs.FLAGS)))


def _read_expected(folder: Path, dice: random.Random) -> None:
    import numpy as np

    from tracemap.capture.outputs import Tolerance, compare_outputs, expected_arrays

    output = np.zeros((2, 3), dice.choice(("float32", "int32", "bool", "complex64")))
    spec = dice.choice(("@{}", "+{}", "152xi8=@{}")).format(folder / inputs.EXPECTED)
    found = compare_outputs([output], expected_arrays([spec], [output]), Tolerance(exact=dice.random() < 0.5))
    assert str(found[0])


def _read_array(folder: Path, _dice: random.Random) -> None:
    from tracemap.capture.calling import shapes_of

    assert len(list(shapes_of([f"@{folder / inputs.EXPECTED}"]))) == 1


def _read_module(folder: Path, _dice: random.Random) -> None:
    import numpy as np

    from tracemap.machine.code import instructions_of, loops_by_address, loops_of
    from tracemap.machine.code_figures import code_locations, linked_functions
    from tracemap.machine.images import NOWHERE, kernel_images, read_images

    images = read_images(folder / inputs.SMALL_MODULE)
    for image in images:
        for function in image.functions:
            assert kernel_images(images, function.name)
            instructions = instructions_of(image, function)
            loops_by_address(instructions, loops_of(instructions))
        middles = [(function.low + function.high) // 2 for function in linked_functions(image)]
        code_locations(image, np.array([NOWHERE, 0, 1 << 40, *middles], dtype=np.int64))


def changed_head(data: bytes, dice: random.Random) -> bytes:
    """Changes to what stands before the records of a file of calls, which is a small part of it."""
    return changed_bytes(data[:_HEAD_OF_CALLS], dice) + data[_HEAD_OF_CALLS:]


_HEAD_OF_CALLS = 4096 + 512


def _read_calls(name: str, folder: Path, dice: random.Random) -> None:
    page, table = folder / "stats.html", folder / "calls.parquet"
    forms: Sequence[tuple[str | Path, ...]] = (
        ("--format", "json"),
        ("--no-table",),
        ("--html", page, "--force"),
        ("--calls", table, "--force"),
        ("--csv", folder / inputs.STATS_FOLDER, "--force"),
    )
    run_command("stats", folder / name, *dice.choices(forms, (4, 4, 4, 1, 1))[0])  # the last two write each call


def _read_samples(folder: Path, _dice: random.Random) -> None:
    from tracemap.runs.hook.samples import read_samples

    read_samples(folder / inputs.CALLS)


def _read_hook_csv(folder: Path, dice: random.Random) -> None:
    more = dice.choice((("--format", "json"), (), ("--html", folder / "stats.html", "--force")))
    run_command("stats", folder / inputs.HOOK_CSV, "--buckets", dice.choice("148"), *more)


def _read_cuda(folder: Path, _dice: random.Random) -> None:
    _read_cells(folder / inputs.CUDA)


def _read_calls_of_kernel(folder: Path, dice: random.Random) -> None:
    kernel = "mlp_dispatch_0_matmul_32x256x784_f32"
    if dice.random() >= _WITH_COMMAND:
        _read_cells(folder / inputs.HOOK_CSV, kernel)
        return
    named = ("--dispatch", kernel)
    form = dice.choice(("text", "json", "csv"))
    run_command("attribute", folder / inputs.HOOK_CSV, "--map", folder / inputs.BUNDLE, *named, "--format", form)


def _read_counts(folder: Path, dice: random.Random) -> None:
    from tracemap.runs.callgrind import read_callgrind

    path = folder / inputs.CALLGRIND
    text = path.read_text(encoding="utf-8", errors="replace")
    objects = {line.removeprefix("ob=") for line in text.splitlines() if line.startswith("ob=")}
    read_callgrind(path, dice.choice((objects, objects & {sorted(objects)[0]} if objects else objects)))


def _read_model(name: str, folder: Path, _dice: random.Random) -> None:
    """A model, and what is found out about it before anything is compiled."""
    from tests.builders import facts_of
    from tracemap.commands.build import read_model

    data, _ = read_model(str(folder / name))
    facts = facts_of(data)
    facts.precompute()
    for op in facts.ops:
        facts.origins.operands(op, ())
        facts.softmaxes.parts(op.index, ())


def _read_dumps(folder: Path, _dice: random.Random) -> None:
    given = (
        "--from-dumps",
        folder / inputs.DUMPS,
        "--module",
        folder / "dumped.vmfb",
        "-o",
        folder / "dumped.tracemap",
    )
    run_command("build", *given, "--force")


def _each_line(path: Path, read: Callable[[str], object]) -> None:
    """Read all lines of a text; the last error that refused one is that of the file."""
    refused = None
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        try:
            read(line)
        except TracemapError as error:
            refused = error
    if refused is not None:
        raise refused


def _read_locations(folder: Path, _dice: random.Random) -> None:
    from tracemap.core.locations import frames, name_path, parse_location, scope

    def read(line: str) -> object:
        location = parse_location(line)
        return frames(location), name_path(location), scope(location)

    _each_line(folder / inputs.LOCATIONS, read)


def _read_specs(folder: Path, _dice: random.Random) -> None:
    from tracemap.capture.inputs import given_inputs
    from tracemap.core.functions import Argument, Function

    def read(line: str) -> object:
        kind, _, spec = line.partition("\t")
        return given_inputs(Function("f", (Argument("a", kind, False),)), (spec,))

    with contextlib.chdir(folder):  # a spec names a file in it
        _each_line(folder / inputs.SPECS, read)


def _read_benchmark(folder: Path, _dice: random.Random) -> None:
    from tracemap.capture.benchmark import _times_ns

    _times_ns((folder / inputs.BENCHMARK).read_text(encoding="utf-8", errors="replace"))


def _read_stops(folder: Path, _dice: random.Random) -> None:
    import numpy as np

    from tracemap.runs.hook.samples import read_stops

    for begins in ((), range(150, 1250, 200)):
        read_stops(folder / inputs.STOPS, np.array(begins, dtype=np.int64), 5)


def _colour(folder: Path, dice: random.Random) -> None:
    from tracemap.reports.highlight import MlirLexer

    text = dice.choice(sorted((folder / inputs.BUNDLE / "kernels").iterdir())).read_text("utf-8", errors="replace")
    assert "".join(value for _, value in MlirLexer(stripnl=False, ensurenl=False).get_tokens(text)) is not None


def _read_kept(folder: Path, _dice: random.Random) -> None:
    from tracemap.capture.inputs import saved_inputs
    from tracemap.commands.programs import saved_inputs_of
    from tracemap.core.functions import Argument, Function
    from tracemap.map.bundle import load

    types = ("tensor<2x3xf32>", "tensor<4xi64>", "tensor<i1>")
    kept = saved_inputs_of(load(folder / inputs.KEPT))
    specs = folder / "specs"
    specs.mkdir(exist_ok=True)
    function = Function("mlp", tuple(Argument(f"input{at}", kind, loop_bound=False) for at, kind in enumerate(types)))
    if kept.is_for(function):
        saved_inputs(function, kept, specs)
    kept.flags(())


def _read_store(folder: Path, dice: random.Random) -> None:
    store = folder / inputs.STORE
    lax = ("--skip-bad",) if dice.random() < 0.4 else ()
    form = ("--format", dice.choice(("text", "json", "csv")))
    commands: Sequence[tuple[str | Path, ...]] = (
        ("list",),
        ("query",),
        ("query", "--group-by", dice.choice(("date", "cpu_model,host", "tag.night"))),
        ("query", "--calls"),
        ("query", "--totals", "--where", dice.choice(("iterations=20", "tag.night=1*", "date=2*"))),
        ("sites",),
        ("sites", "--group-by", "host"),
        ("trend", "--threshold", "0.1"),
        ("trend", "--over", "compiler", "--html", folder / "page.html"),
        ("compare", "--before", "iterations=20", "--after", "iterations=21"),
    )
    name, *words = dice.choice(commands)
    (folder / "page.html").unlink(missing_ok=True)
    run_command("store", name, "--store", store, *words, *lax, *form)


def _add_to_store(folder: Path, dice: random.Random) -> None:
    """One that is there, or the first of another compilation, whose ops are matched with those that are there."""
    there, other = (inputs.STORED[0], inputs.BUNDLE), (inputs.OTHER_RUN, inputs.OTHER)
    run, bundle = dice.choice((there, other, other, other))
    model = Path(inputs.BUNDLE).stem
    # The damaged file alone is put back after each try.
    with tempfile.TemporaryDirectory() as work:
        store = shutil.copytree(folder / inputs.STORE, Path(work) / "store")
        if dice.random() >= _WITH_COMMAND:
            _match_with_store(store, folder / inputs.OTHER, model)
            return
        run_command("store", "add", folder / run, "--map", folder / bundle, "--store", store, "--model", model)


def _match_with_store(root: Path, bundle: Path, model: str) -> None:
    """What `store add` does before it writes a run: that is attributed as ever, whatever the store has."""
    from tracemap.commands.store import keep_bundle
    from tracemap.core.toolchain import no_progress
    from tracemap.map.bundle import load
    from tracemap.runs.model import UNKNOWN_MACHINE
    from tracemap.store.adding import RunDescription
    from tracemap.store.layout import store_at

    said = RunDescription(number=1, model=model, machine=UNKNOWN_MACHINE, added_ns=1)
    keep_bundle(store_at(root), load(bundle), said, no_progress)


READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("map", ((f"{inputs.BUNDLE}/map.json", changed_json),), _read_bundle),
        Reader("remarks", ((f"{inputs.BUNDLE}/remarks.json", changed_json),), _read_remarks),
        Reader("compiled", ((f"{inputs.BUNDLE}/compiled.json", changed_json),), _read_compiled),
        Reader("timing", ((f"{inputs.BUNDLE}/timing.json", changed_json),), _read_timing),
        Reader("numerics", ((f"{inputs.BUNDLE}/numerics.json", changed_json),), _read_numerics),
        Reader("memory", ((f"{inputs.BUNDLE}/memory.json", changed_json),), _read_memory),
        Reader(
            "kept",
            ((f"{inputs.KEPT}/call.json", changed_json), (f"{inputs.KEPT}/inputs/*.npy", changed_bytes)),
            _read_kept,
        ),
        Reader(
            "bundle",
            (
                (f"{inputs.BUNDLE}/kernels/*", changed_lines),
                (f"{inputs.BUNDLE}/source/*", changed_lines),
                (f"{inputs.BUNDLE}/{inputs.MODULE}", changed_module),
            ),
            _read_bundle,
        ),
        Reader("header", ((f"{inputs.CSV}.json", changed_json),), partial(_read_run, inputs.CSV)),
        Reader("parquet-header", ((inputs.RUN, changed_parquet_header),), partial(_read_run, inputs.RUN)),
        Reader("parquet", ((inputs.RUN, changed_bytes),), partial(_read_run, inputs.RUN)),
        Reader("csv", ((inputs.CSV, changed_csv),), partial(_read_run, inputs.CSV)),
        Reader("profile", ((inputs.PROFILE, changed_bytes),), partial(_read_run, inputs.PROFILE)),
        Reader("export", ((inputs.EXPORT, changed_json_lines),), _read_export),
        Reader("exported-run", ((inputs.EXPORT, changed_json_lines),), partial(_read_run, inputs.EXPORT)),
        Reader("report", ((inputs.REPORT, changed_json_lines),), partial(_read_run, inputs.REPORT)),
        Reader(
            "reported-events",
            ((inputs.REPORTED_EVENTS, changed_json_lines),),
            partial(_read_run, inputs.REPORTED_EVENTS),
        ),
        Reader(
            "dispatch-statistics",
            ((inputs.DISPATCH_STATISTICS, changed_json),),
            partial(_read_run, inputs.DISPATCH_STATISTICS),
        ),
        Reader(
            "cuda",
            ((f"{inputs.CUDA}/*.activity", changed_bytes), (f"{inputs.CUDA}/*.jsonl", changed_json_lines)),
            _read_cuda,
        ),
        Reader("flags", ((inputs.FLAGS, changed_lines), ("more.flags", changed_lines)), _read_flags),
        Reader("expected", ((inputs.EXPECTED, changed_bytes),), _read_expected),
        Reader("array", ((inputs.EXPECTED, changed_bytes),), _read_array),
        Reader("module", ((inputs.SMALL_MODULE, changed_module), (inputs.SMALL_MODULE, changed_bytes)), _read_module),
        Reader(
            "calls",
            ((f"{inputs.CALLS}/*.jsonl", changed_json_lines), (f"{inputs.CALLS}/*.calls", changed_bytes)),
            partial(_read_calls, inputs.CALLS),
        ),
        Reader(
            "newest-calls",
            ((f"{inputs.NEWEST}/*.calls", changed_head), (f"{inputs.NEWEST}/*.calls", changed_bytes)),
            partial(_read_calls, inputs.NEWEST),
        ),
        Reader(
            "samples",
            ((f"{inputs.CALLS}/*.samples", changed_bytes), (f"{inputs.CALLS}/*.jsonl", changed_json_lines)),
            _read_samples,
        ),
        Reader("hook-csv", ((inputs.HOOK_CSV, changed_csv),), _read_hook_csv),
        Reader("hook-csv-run", ((inputs.HOOK_CSV, changed_csv),), _read_calls_of_kernel),
        *(
            Reader(name.removesuffix(".csv"), ((name, changed_csv), (name, changed_lines)), partial(_read_run, name))
            for name in (*inputs.ZONES, *inputs.LAUNCHES)
        ),
        *(
            Reader(name.removesuffix(".txt"), ((name, changed_lines), (name, changed_words)), partial(_read_run, name))
            for name in inputs.SAMPLES_OF_PERF
        ),
        *(
            Reader(
                name.removesuffix(".mlir"),
                ((name, changed_names), (name, changed_names), (name, changed_lines), (name, changed_bytes)),
                partial(_read_model, name),
            )
            for name in (inputs.SOURCE, *inputs.SOURCES)
        ),
        Reader("dumps", ((f"{inputs.DUMPS}/*.mlir", changed_lines), ("dumped.vmfb", changed_bytes)), _read_dumps),
        Reader("store", ((f"{inputs.STORE}/**/*.parquet", changed_table),), _read_store),
        Reader(
            "store-add",
            tuple((f"{inputs.STORE}/{table}/**/*.parquet", changed_table) for table in ("ops", "maps", "runs")),
            _add_to_store,
        ),
        Reader("locations", ((inputs.LOCATIONS, changed_words),), _read_locations),
        Reader("specs", ((inputs.SPECS, changed_words),), _read_specs),
        Reader("benchmark", ((inputs.BENCHMARK, changed_json),), _read_benchmark),
        Reader("stops", ((inputs.STOPS, changed_bytes),), _read_stops),
        Reader("colours", ((f"{inputs.BUNDLE}/kernels/*.mlir", changed_words),), _colour),
        Reader("callgrind", ((inputs.CALLGRIND, changed_lines),), _read_counts),
    )
}
