"""Output and help of each command at terminal widths and into pipes, as golden files.

`pytest tests/commands/test_help.py --update-gold` writes them anew. Lines are looked at as they were printed; then
what differs from run to run is masked: `<time>` stands for a time with its unit, `<percent>` for a percentage,
`<folder>` for the folder of the test, `<library>` for the folder of the hook's library, and the version of the compiler
is `<version>`. What is known of how busy the machine was, [noisy] and [noise-unknown], is left out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from msgspec import structs

from tests.commands.test_lower import AFFINE, AFFINE_FUSION, PROGRAMS
from tests.conftest import Built
from tests.hook.test_stats import calls_file
from tests.support import ROOT, SAMPLES, check_cli
from tests.terminals import GOLD, RUN, WIDTHS, check_gold, check_lines, compare_with_gold, said_on_terminal
from tracemap.capture.counters import Availability, find_event
from tracemap.commands.doctor import Ability, Findings, State, print_findings
from tracemap.commands.events import print_events
from tracemap.commands.framework import HelpContext
from tracemap.commands.main import group
from tracemap.compare.model import (
    Amount,
    ComparedSide,
    Comparison,
    Drift,
    Finding,
    FusionChange,
    KernelCode,
    KernelDifference,
    MetricDifference,
    OpDifference,
    SettingDifference,
    UnattributedDifference,
)
from tracemap.core.diagnostics import NOISY, Diagnostic
from tracemap.core.units import UNKNOWN
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.kernels.model import (
    ApplicationComparison,
    Bench,
    BestConfiguration,
    ComparedFunction,
    ComparedOutput,
    KernelBench,
    KernelChange,
    KernelTuning,
    OpChange,
    Ratio,
    Replacement,
    Spread,
    Status,
    Swapped,
    Tune,
    Verification,
)
from tracemap.map.model import OpId
from tracemap.options.reports import DiffOptions
from tracemap.reports.terminal.diff import print_diff
from tracemap.reports.terminal.kernels import print_bench, print_swap, print_tune
from tracemap.reports.terminal.store import print_comparison, print_trends
from tracemap.reports.views.selection import VIEWS
from tracemap.runs.runfile import header_path
from tracemap.store.model import (
    ModelDifferences,
    QueryScope,
    StoreChange,
    StoreComparison,
    StoreDifference,
    StoreHost,
    StoreOpName,
    StorePoint,
    StoreTrend,
    StoreTrends,
)
from tracemap.store.queries import ALL_OPS

Masks = tuple[tuple[re.Pattern[str], str], ...]
MASKS: Masks = (
    (re.compile(r"\d[\d,.]* (?:ns|µs|ms|s)\b"), "<time>"),
    (re.compile(r"\d[\d,.]* %"), "<percent>"),
    (re.compile(r"(?<=iree-opt )\S+"), "<version>"),
    (re.compile(re.escape(str(FOLDER))), "<library>"),
    (re.compile(rf"tracemap: warning: .* \[(?:{NOISY}|noise-unknown)\]\n"), ""),
)

OUTPUTS = {
    "profile": [],
    "build": ["build"],
    "show": ["show", "show-kernel"],
    "audit": ["audit"],
    "lower": ["lower"],
    "run": ["run"],
    "benchmark": ["benchmark"],
    "record": ["record"],
    "attribute": [*(f"attribute-{by}" for by in VIEWS), "attribute-page"],
    "what-if": ["what-if"],
    "memory": ["memory"],
    "numerics": ["numerics", "numerics-against"],
    "remarks": ["remarks"],
    "diff": ["diff"],
    "check": [],
    "bisect": [],
    "reduce": [],
    "export": [],
    "mcp": [],
    "debug-info": ["debug-info"],
    "bench": ["bench"],
    "swap": ["swap"],
    "tune": ["tune"],
    "sweep": [],
    "doctor": ["doctor"],
    "events": ["events"],
    "stats": ["stats"],
    "hook": [],
    "hook env": ["hook-env"],
    "hook path": ["hook-path"],
    "report": ["report"],
    "lsp": [],
    "store": [],
    "store add": ["store-add"],
    "store list": ["store-list"],
    "store query": ["store-query"],
    "store sites": ["store-sites"],
    "store trend": ["store-trend"],
    "store compare": ["store-compare"],
}
"""Each command, and the golden files of what it prints. A group prints nothing but its help, `sweep` only CSV,
`export` what other tools read."""


def commands(of: click.Group = group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command of the command line by its words, groups before their own."""
    context = click.Context(of)
    for name in of.list_commands(context):
        command = of.get_command(context, name)
        assert command is not None
        yield before + name, command
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")


def help_file(name: str) -> str:
    return "-".join(["help", *name.split()])


def test_every_command_has_golden_files() -> None:
    """A new command has to be added above, with what it prints; and no golden file is left of what is gone."""
    names = [name for name, _ in commands()]
    assert list(OUTPUTS) == names
    expected = {f"{name}.txt" for files in OUTPUTS.values() for name in files}
    expected |= {f"{help_file(name)}.txt" for name in ("", *names)}
    assert {file.name for file in GOLD.glob("*.txt")} == expected


# ---- help


@pytest.mark.parametrize("name", ["", *(name for name, _ in commands())])
def test_help_looks_as_it_did(name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Lines are shorter than the narrowest terminal asked for, and no word is broken at its hyphens."""
    command = dict(commands()).get(name, group)
    texts = {}
    for columns in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        texts[columns] = _help(command, name)
        check_lines(texts[columns], columns or 80)
        assert not re.search(r"[^-\s]-$", texts[columns], re.MULTILINE)
        assert "..." not in texts[columns].replace("[ARGS]...", "").replace("RUN...", "").replace("]...", "")
    compare_with_gold(help_file(name), texts, request)


def _help(command: click.Command, name: str) -> str:
    """As `tracemap NAME --help` prints it."""
    context: click.Context = HelpContext(group, info_name="tracemap", **group.context_settings)
    here: click.Command = group
    for word in name.split():
        assert isinstance(here, click.Group)
        found = here.get_command(context, word)
        assert found is not None
        here, context = found, found.context_class(found, info_name=word, parent=context)
    assert here is command
    return command.get_help(context) + "\n"


# ---- what commands print


def shown(columns: int | None, *arguments: str | Path, cwd: Path) -> str:
    """What a command prints on a terminal, or into a pipe, and below it what it says on standard error.

    Sentences on standard error are a line each, whatever the width, so that programs can tell them apart.
    """
    out, said = said_on_terminal(columns, *arguments, cwd=cwd, NO_COLOR="1")
    for text, width in ((out, columns), (said, None)):
        if text:
            check_lines(text, width)
    return out + ("-- standard error\n" + said if said else "")


def masked(text: str, masks: Masks = MASKS) -> str:
    for pattern, stands_for in masks:
        text = pattern.sub(stands_for, text)
    return text


def check_shown(
    name: str, *arguments: str | Path, cwd: Path, request: pytest.FixtureRequest, masks: Masks = MASKS
) -> None:
    """Run a command at all widths; `masks`: none where what it takes is kept, so that nothing differs."""
    texts = {columns: masked(shown(columns, *arguments, cwd=cwd), masks) for columns in WIDTHS}
    compare_with_gold(name, texts, request)


@pytest.mark.long
def test_build_looks_as_it_did(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With what it warns of: ops of which the model does not say where they come from."""
    shutil.copy(SAMPLES / "models" / "hand_mlp_unknown.mlir", tmp_path)
    check_shown("build", "build", "hand_mlp_unknown.mlir", "--force", cwd=tmp_path, request=request)


@pytest.mark.long
def test_what_irees_programs_print_looks_as_it_did(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Laid out as they do it, whatever the width, with what tracemap adds."""
    check_cli("build", ROOT / "tests" / "programs" / "several.mlir", "-o", tmp_path / "m.tracemap")
    times = ((re.compile(r"(?<=real_time) .*"), " <times>"),)
    for name, arguments in (
        ("run", ("run", "m.tracemap")),
        ("benchmark", ("benchmark", "m.tracemap", "--iterations", "2")),
    ):
        texts = {}
        for columns in WIDTHS:
            out, said = said_on_terminal(columns, *arguments, cwd=tmp_path, NO_COLOR="1")
            check_lines(said, None)
            assert all(line.isprintable() for line in out.split("\n"))
            texts[columns] = masked(f"{out}-- standard error\n{said}", times)
        assert len(set(texts.values())) == 1
        compare_with_gold(name, texts, request)


@pytest.mark.long
def test_record_looks_as_it_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options = ("--iterations", "3", "--keep-profile", "-o", "run.csv", "--force")
    shutil.copytree(fixed("hand_mlp"), tmp_path / "m.tracemap")
    check_shown("record", "record", "m.tracemap", *options, cwd=tmp_path, request=request)


@pytest.mark.long
def test_a_page_of_costs_is_told(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copytree(fixed("jax_mlp_train"), tmp_path / "m.tracemap")
    options = ("--map", "m.tracemap", "--rule", "model", "--top", "3", "--html", "page.html", "--force")
    check_shown("attribute-page", "attribute", RUN, *options, cwd=tmp_path, request=request, masks=())


@pytest.mark.long
def test_gains_look_as_they_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copytree(fixed("jax_mlp_train"), tmp_path / "m.tracemap")
    options = ("--map", "m.tracemap", "--rule", "model", "--top", "8")
    check_shown("what-if", "what-if", RUN, *options, cwd=tmp_path, request=request, masks=())


@pytest.mark.long
def test_memory_looks_as_it_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "m.tracemap").symlink_to(fixed("jax_mlp_train"))
    check_shown("memory", "memory", "m.tracemap", "--top", "8", cwd=tmp_path, request=request)


@pytest.mark.long
def test_numerics_look_as_they_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Rounding errors depend on the processor's instructions; the rest does not."""
    (tmp_path / "m.tracemap").symlink_to(fixed("hand_mlp"))
    errors: Masks = ((re.compile(r"(?<= right) +\S+ +\S+e-\d+"), " <errors>"),)
    check_shown("numerics", "numerics", "m.tracemap", cwd=tmp_path, request=request, masks=errors)
    against = ("numerics", "m.tracemap", "--against", "m.tracemap")
    check_shown("numerics-against", *against, cwd=tmp_path, request=request, masks=())


@pytest.mark.long
def test_debug_information_looks_as_it_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "m.tracemap").symlink_to(fixed("hand_mlp"))
    options = ("-o", "symbols", "--lines", "kernel")
    build_id: Masks = ((re.compile(r"^[0-9a-f]{12}(?=  X86)", re.MULTILINE), "<build-id> "),)
    check_shown("debug-info", "debug-info", "m.tracemap", *options, cwd=tmp_path, request=request, masks=build_id)


@pytest.mark.long
def test_remarks_look_as_they_did(remarked: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "m.tracemap").symlink_to(remarked("hand_attention"))
    check_shown("remarks", "remarks", "m.tracemap", "--top", "12", cwd=tmp_path, request=request)


@pytest.mark.long
def test_report_looks_as_it_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copytree(fixed("jax_mlp_train"), tmp_path / "m.tracemap")
    check_shown("report", "report", "m.tracemap", RUN, "-o", "page.html", "--force", cwd=tmp_path, request=request)


@pytest.mark.long
def test_a_store_looks_as_it_did(fixed: Built, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copytree(fixed("jax_mlp_train"), tmp_path / "m.tracemap")
    for file in (RUN, header_path(RUN)):
        shutil.copy(file, tmp_path)
    run_name: Masks = ((re.compile(r"\b[0-9a-f]{15}\b"), "<run's own name>"),)
    said = (
        "--host",
        "ci-7",
        "--cpu-model",
        "Intel Xeon Platinum 8481C",
        "--recorded",
        "2026-11-20",
        "--tag",
        "branch=main",
    )
    added = ("store", "add", RUN.name, "--map", "m.tracemap", "--store", "nightly", *said)
    check_cli(*added, cwd=tmp_path)
    check_shown("store-add", *added, cwd=tmp_path, request=request, masks=run_name)
    (tmp_path / "nightly" / "costs" / "mine.parquet").write_text("a,b\n1,2\n")
    about = ("--store", "nightly", "--skip-bad")
    check_shown("store-list", "store", "list", *about, cwd=tmp_path, request=request, masks=run_name)
    grouped = ("--group-by", "host,tag.branch", "--metric", "cpu_ns,duration_ns", "--top", "5")
    by_site = ("store", "sites", *about, "--top", "6")
    of_map: Masks = ((re.compile(r"(?<=map )[0-9a-f]{12}"), "<its beginning>"),)
    check_shown("store-sites", *by_site, cwd=tmp_path, request=request, masks=of_map)
    check_shown("store-query", "store", "query", *about, *grouped, cwd=tmp_path, request=request, masks=())


OP = StoreOpName(op="op12", name="stablehlo.dot_general", file="jax_mlp_train.mlir", line=22, scope="grad/jvp(layer1)")
LOOKED = QueryScope(runs=4000, skipped=(), unfinished=1, ahead=2)


def test_what_changed_in_a_store_looks_as_it_did(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A change on some hosts and one of all ops, a host unlike others, a model without any."""
    change = StoreChange(
        kind="slower",
        op=OP,
        cpu_model="Intel Xeon Platinum 8481C",
        host=UNKNOWN,
        night="2026-11-19",
        night_low="2026-11-18",
        night_high="2026-11-20",
        ratio=1.041,
        ratio_low=1.032,
        ratio_high=1.049,
        before=214_912,
        after=223_723,
        hosts=6,
        hosts_agree=5,
        nights_before=90,
        nights_after=110,
        chance=3e-9,
        series=(StorePoint("2026-11-18", 214_912), StorePoint("2026-11-19", 223_723)),
    )
    every = structs.replace(change, op=ALL_OPS, host="ci-7", before=UNKNOWN, after=UNKNOWN, night_low=change.night)
    every = structs.replace(every, night_high=change.night, kind="faster", ratio=0.931)
    odd = StoreHost("ci-3", "AMD EPYC 7313", ALL_OPS, ratio=1.31, z=9.4, hosts=8, chance=1e-6)
    first = StoreTrend("jax_mlp_train", "main", UNKNOWN, 200, 20, 3, 106, 3, (change, every), (odd,), (), (), ())
    quiet = StoreTrend("hand_mlp", "mlp", UNKNOWN, 7, 20, 3, 24, 0, (), (), (), (), ())
    found = StoreTrends(metric="cpu_ns", over="date", models=(first, quiet), looked=LOOKED)
    check_gold("store-trend", lambda out: print_trends(found, out), monkeypatch, request)


def test_what_differs_between_runs_looks_as_it_did(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    slower = StoreDifference("slower", OP, "AMD EPYC 7313", 1.12, 1.09, 1.15, 214_912, 240_701, 4, 24, 1e-9)
    models = (
        ModelDifferences("m", "main", UNKNOWN, 53, 2, 0, (slower,)),
        ModelDifferences("hand_mlp", "mlp", UNKNOWN, 16, 0, 3, ()),
    )
    in_time = structs.replace(LOOKED, ahead=0)
    found = StoreComparison(metric="cpu_ns", models=models, before=LOOKED, after=in_time)
    check_gold("store-compare", lambda out: print_comparison(found, out), monkeypatch, request)


@pytest.mark.long
def test_lower_looks_as_it_did(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copy(PROGRAMS / "matmul_bias_relu.mlir", tmp_path / "m.mlir")
    pipelines = ("--pipeline", AFFINE, "--pipeline", AFFINE_FUSION)
    check_shown("lower", "lower", "m.mlir", *pipelines, "--html", "l.html", "--force", cwd=tmp_path, request=request)


@pytest.mark.long
def test_stats_look_as_they_did(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Laid out as IREE's hook does it, whatever the width: shades of nothing are blanks, at line ends too."""
    calls = calls_file(tmp_path / "calls.csv", 500)
    text = check_cli("stats", calls, "--buckets", "4")
    texts = {width: said_on_terminal(width, "stats", calls, "--buckets", "4", NO_COLOR="1") for width in WIDTHS}
    assert set(texts.values()) == {(text, "")}
    assert all(line.isprintable() for line in text.split("\n"))
    compare_with_gold("stats", dict.fromkeys(WIDTHS, text), request)


def test_the_hooks_words_look_as_they_did(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What a shell or `env` is to take apart is not folded, however long a path is."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    (tmp_path / "calls").mkdir()
    for name, arguments in (
        ("hook-path", ("hook", "path")),
        ("hook-env", ("hook", "env", "-o", "calls", "--filter", "*matmul*", "--export")),
    ):
        texts = {}
        for columns in WIDTHS:
            out, said = said_on_terminal(columns, *arguments, cwd=tmp_path, NO_COLOR="1", LD_PRELOAD="")
            check_lines(out, None)
            assert not said
            texts[columns] = masked(out).replace(str(tmp_path), "<folder>")
        compare_with_gold(name, texts, request)


def test_events_look_as_they_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Of a machine that counts some, one of them in user code only, and has two reasons for the others."""
    none, forbidden = "this machine has no such counter (virtual machines often hide them)", "this user may count none"
    found = [
        Availability(replace(find_event("page-faults"), mode="ring"), opens=True, reason=""),
        Availability(find_event("cpu-cycles"), opens=False, reason=none),
        Availability(find_event("instructions"), opens=True, reason="user code only"),
        Availability(find_event("context-switches"), opens=False, reason=forbidden),
        Availability(find_event("L1-dcache-prefetch-misses"), opens=False, reason=none),
        Availability(find_event("r00c0"), opens=False, reason=none),
    ]
    check_gold("events", lambda out: print_events(found, out), monkeypatch, request)


def test_doctor_looks_as_it_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Of a machine that has most things, some of them in part."""
    bare = Ability("browser", State.MISSING, "no browser is registered", "viewing pages", "set BROWSER to its command")
    found = Findings(
        tracemap="0.1.0",
        python="3.12.4",
        platform="Linux 6.1, x86_64",
        ok=True,
        abilities=(
            Ability("compiler", State.WORKS, "iree-base-compiler 3.13.0, /a/b/iree-compile", "build", needed=True),
            Ability(
                "valgrind", State.PARTLY, "valgrind 3.19.0", "record --cache-sim", "3.24 and newer need no such change"
            ),
            bare,
        ),
    )
    check_gold("doctor", lambda out: print_findings(found, out), monkeypatch, request)


SPREAD = Spread(84_912.4, 81_002.0, 90_417.5, 10, 240, 1)
RIGHT = Verification(Status.SUCCESS, "numpy", 6.4e-06, "")
WRONG = Verification(
    Status.FAILED, "numpy", 6.4e-06, "[0, 3] of 32x10xf32 in binding 1 is nan, not 0.1; 2 of 320 elements differ"
)
ALONE = KernelBench(
    kernel="mlp_dispatch_0_matmul_32x256x784_f32",
    sites=("site0", "site4"),
    arguments="32x784xf32, 784x256xf32 -> 32x256xf32",
    operation_kind="linalg.matmul",
    operation="matmul_32x256x784_f32",
    configuration="DoubleTilingExpert distribution=[8, 64, 0]",
    verification=RIGHT,
    time_ns=SPREAD,
    cold_ns=Spread(121_000.0, 118_000.0, 125_000.0, 10, 400, 62),
    operations=12_845_056,
    bytes=936_000,
    operations_per_s=151_273_000_000.0,
    bytes_per_s=11_023_000_000.0,
    roofline_share=0.61,
    same_code=True,
    stood_in=0,
    in_application=(
        ApplicationComparison(
            "site0", 900, 131_000, 1.543, UNKNOWN, "cold data: with cold caches it takes as long alone"
        ),
    ),
    not_measured="",
)
OTHER = structs.replace(
    ALONE,
    kernel="mlp_dispatch_3_softmax_32x10xf32_dispatch_tensor_store",
    sites=("site3",),
    verification=WRONG,
    cold_ns=None,
    roofline_share=None,
    same_code=False,
    stood_in=2,
    in_application=(),
)
FASTER = OpChange(
    "op6",
    "linalg.matmul",
    11,
    277_000.0,
    201_400.0,
    Ratio(0.7271, 0.7102, 0.7499),
    named=True,
    unchanged_code=False,
    replaced=True,
)
SAME = structs.replace(
    FASTER, op="op17", line=UNKNOWN, ratio=Ratio(1.01, 0.97, 1.04), named=False, unchanged_code=True, replaced=False
)


COMPARED = ComparedSide("model.tracemap", "1" * 64, "2" * 64, "run-001.parquet", 40, 812_000, 3)
COMPARISON = Comparison(
    before=COMPARED,
    after=structs.replace(COMPARED, bundle="new.tracemap", map_sha256="3" * 64, module_sha256="4" * 64),
    same_model=False,
    matched_percent=66.67,
    invocations=1000,
    threshold_percent=3.0,
    settings=(
        SettingDifference(UNKNOWN, "compiler", "3.12.0", "3.13.0"),
        SettingDifference(UNKNOWN, "--iree-opt-data-tiling", UNKNOWN, "true"),
        SettingDifference(UNKNOWN, "workers", "1", "4"),
        SettingDifference("b_softmax", "pipeline", "DoubleTilingExpert", "Mmt4dTilingExpert"),
        SettingDifference("b_softmax", "vector_common_parallel", "[8, 16, 0]", "[1, 1, 0, 16, 16, 0]"),
    ),
    drift=Drift(1.04, 1.02, 7),
    basis="corrected",
    findings=(
        Finding("slower", "op6", "op7", "linalg.matmul", 11, "cpu_ns", 277_000, 402_100, 1.3958, 1.3102, 1.4499),
        Finding("new", UNKNOWN, "op2", "linalg.softmax", 8, "cpu_ns", UNKNOWN, 90_000, 0.0, 0.0, 0.0),
        Finding("gone", "op3", UNKNOWN, "linalg.generic", UNKNOWN, "cpu_ns", 71_000, UNKNOWN, 0.0, 0.0, 0.0),
    ),
    metrics=(
        MetricDifference(
            name="cpu_ns",
            unit="ns",
            whole=Amount(350_000_000, 500_000_000, 150_000_000),
            matched=Amount(277_000_000, 402_100_000, 125_100_000),
            gone=Amount(71_000_000, 0, -71_000_000),
            new=Amount(0, 90_000_000, 90_000_000),
            unattributed=Amount(2_000_000, 7_900_000, 5_900_000),
        ),
    ),
    ops=(
        OpDifference(
            *(
                "op6",
                "op7",
                "neighbours",
                True,
                "linalg.matmul",
                "linalg.matmul",
                10,
                11,
                ("h0", "ffn"),
                "dispatched",
                "dispatched",
            ),
            *("changed", {"cpu_ns": Amount(277_000_000, 402_100_000, 125_100_000)}),
        ),
        OpDifference(
            *(UNKNOWN, "op2", UNKNOWN, False, UNKNOWN, "linalg.softmax", UNKNOWN, 8, ("h0",), UNKNOWN, "dispatched"),
            *(UNKNOWN, {"cpu_ns": Amount(0, 90_000_000, 90_000_000)}),
        ),
        OpDifference(
            *(
                "op3",
                UNKNOWN,
                UNKNOWN,
                False,
                "linalg.generic",
                "linalg.generic",
                UNKNOWN,
                UNKNOWN,
                (),
                "dispatched",
                UNKNOWN,
            ),
            *(UNKNOWN, {"cpu_ns": Amount(71_000_000, 0, -71_000_000)}),
        ),
        OpDifference(
            *(
                "op1",
                "op1",
                "structure",
                False,
                "arith.constant",
                "arith.constant",
                3,
                3,
                (),
                "constant",
                "folded",
                UNKNOWN,
                {},
            ),
        ),
    ),
    scopes=(),
    lines=(),
    sources=(),
    python=(),
    unattributed=(UnattributedDifference("submission-and-queue", {"cpu_ns": Amount(2_000_000, 7_900_000, 5_900_000)}),),
    regrouped=(
        FusionChange(
            OpId("op6"), OpId("op7"), "linalg.matmul", (OpId("op2"),), (OpId("op3"),), ("a_matmul",), ("b_softmax",)
        ),
    ),
    kernels=(
        KernelDifference("a_matmul", "b_softmax", KernelCode(214, 3, 512, 0), KernelCode(394, 3, 256, 11)),
        KernelDifference("gone", UNKNOWN, KernelCode(), KernelCode()),
    ),
    diagnostics=(Diagnostic("settings-differ", "the runs differ in number of workers: 1 before, 4 after"),),
)


def test_a_comparison_looks_as_it_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Of an edited model, with a finding of each kind."""
    check_gold("diff", lambda out: print_diff(COMPARISON, out, DiffOptions()), monkeypatch, request)


def test_kernels_alone_look_as_they_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Of a run in which a kernel takes another time, and a kernel that is wrong."""
    made = Bench(
        module_sha256="0" * 64, run="run-001.parquet", device="local-sync", processes=5, kernels=(ALONE, OTHER)
    )
    check_gold("bench", lambda out: print_bench(made, out), monkeypatch, request)


def test_replaced_kernels_look_as_they_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    slower = structs.replace(SPREAD, median=60_120.0)
    made = Swapped(
        original="model.tracemap",
        bundle="new.tracemap",
        replaced=(Replacement("mlp_dispatch_0", (ALONE.kernel,), "edited.mlir", "configuration"),),
        kernels=(
            KernelChange(ALONE.kernel, RIGHT, SPREAD, slower, 10),
            KernelChange(OTHER.kernel, WRONG, SPREAD, None, 0),
        ),
        functions=(
            ComparedFunction("f", ("4xf32",), (ComparedOutput(0, "4xf32", "as expected", True),), ""),
            ComparedFunction("g", (), (), "it was ended by a signal"),
        ),
        pairs=6,
        whole=Ratio(0.81, 0.79, 0.84),
        ops=(FASTER, SAME),
    )
    check_gold("swap", lambda out: print_swap(made, out), monkeypatch, request)


def test_tuned_kernels_look_as_they_did(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    text = "#iree_cpu.lowering_config<distribution = [16, 64, 0], vector_common_parallel = [8, 16, 0]>"
    made = Tune(
        bundle="model.tracemap",
        kernels=(
            KernelTuning(ALONE.kernel, 24, 2, BestConfiguration(text, "", Ratio(0.72, 0.7, 0.75)), ""),
            KernelTuning(OTHER.kernel, 24, 0, BestConfiguration(text, "Default", Ratio(0.52, 0.5, 0.55)), ""),
            KernelTuning("another", 24, 0, None, ""),
        ),
        spec="model.spec.mlir",
        pairs=6,
        application=Ratio(0.81, 0.79, 0.84),
        ops=(FASTER, SAME),
    )
    check_gold("tune", lambda out: print_tune(made, out), monkeypatch, request)
