"""The hook under the variables of IREE's own hook: the same output.

The other side is `tracemap stats` over the CSV files that the same calls left. Durations stand there with every digit:
IREE's `%g` has six.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hook import support
from tests.hook.test_counters import TOUCHED, need
from tests.hook.test_host import HERE, compile_c, emulated_host, host, kernels, library, output
from tests.hook.test_stats import GOLD, calls_file
from tests.support import SAMPLES, check_cli
from tracemap.capture.counters import check_event, known_events
from tracemap.hook.compiling import FOLDER, sources
from tracemap.runs.hook.recording import read_recording

__all__ = ["host", "kernels", "library", "output"]

ADD_UP, TOUCH_PAGES = "1", "2"
"""Kernels of the host."""

Done = subprocess.CompletedProcess[str]


def report(library: Path, command: Sequence[object], **variables: str) -> Done:
    """Run a program to its end under the library and variables of IREE's hook."""
    named = {f"IREE_HOOK_{name}": value for name, value in variables.items()}
    return run(command, {**named, "LD_PRELOAD": str(library)})


def run(command: Sequence[object], variables: dict[str, str]) -> Done:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env={**os.environ, **variables}, cwd=SAMPLES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def by_thread(text: str) -> list[str]:
    """The statistics of each thread, in an order of their own."""
    first, *others = text.split("Statistics for thread ")
    assert first == ""
    return sorted(others)


@pytest.fixture(scope="session")
def exact(made: Path) -> Path:
    """The library, with all digits of durations in CSV files."""
    support.need_compiler()
    return support.built_library(made, "exact", ['-DCSV_DURATION="%.9g"'])


# ---- figures


@pytest.fixture(scope="session", params=["plain", "address,undefined"])
def figures(made: Path, request: pytest.FixtureRequest) -> Path:
    support.need_compiler()
    units = ("event_names", "printing", "settings", "statistics", "system")
    own = [FOLDER / f"{unit}.c" for unit in units]
    sanitizers = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all"] if request.param != "plain" else []
    program = made / f"figures-{request.param}"
    return compile_c(program, "-O2", *sanitizers, "-DTRACEMAP_HOOK_WITHOUT_PRELOAD", HERE / "figures.c", *own)


@pytest.mark.long
@pytest.mark.parametrize(("count", "buckets", "gamma"), [(3000, 16, 0.5), (500, 4, 1.0), (3, 5, 0.3), (1, 16, 0.5)])
def test_figures_are_those_of_irees_hook(count: int, buckets: int, gamma: float, figures: Path, tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", count)
    printed = run([figures, csv, str(buckets), str(gamma)], {}).stdout
    assert printed == (GOLD / f"{count}-{buckets}.txt").read_text(encoding="utf-8")


def odd_calls(path: Path, dice: random.Random) -> Path:
    """Series of every size and spread: ties, constants, both signs, sums beyond what single precision holds."""
    scales = [10.0 ** dice.choice((-30, -3, 0, 1, 6, 19, 37)) for _ in range(dice.randrange(1, 5))]
    digits = [dice.choice((0, 1, 5)) for _ in scales]
    lines = [",".join(["thread,cpu,node,duration_us", *(f"e{place}" for place in range(1, len(scales)))])]
    for _ in range(dice.choice((1, 2, 7, 40, 1500))):
        values = [round(dice.gauss(0, 1), digit) * scale + 0 for scale, digit in zip(scales, digits, strict=True)]
        lines.append(",".join(["w", str(dice.choice((0, 1, 9, 65535))), "0", *(f"{value:g}" for value in values)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_figures_of_odd_calls_are_those_of_stats(seed: int, figures: Path, tmp_path: Path) -> None:
    dice = random.Random(seed)
    csv = odd_calls(tmp_path / "calls.csv", dice)
    for buckets in ("1", "3", str(dice.choice((16, 100, 1024)))):
        gamma = dice.choice(("0.5", "1", "2.2"))
        printed = run([figures, csv, buckets, gamma], {}).stdout
        assert printed == check_cli("stats", csv, "--buckets", buckets, "--gamma", gamma)


@pytest.mark.few(1)
def test_events_have_their_names_and_numbers(figures: Path) -> None:
    printed = run([figures], {}).stdout.splitlines()
    assert printed == [f"{event.name} {event.type} {event.config}" for event in known_events()]


# ---- the stock runtime


@pytest.mark.long
@pytest.mark.parametrize("driver", ["local-task", "local-sync"])
@pytest.mark.parametrize("elf", ["embedded", "system"])
def test_stock_tools_print_the_statistics(elf: str, driver: str, exact: Path, made: Path, output: Path) -> None:
    command = support.tool_command("iree-benchmark-module", support.module(made, elf), driver)
    done = report(exact, command, OUTPUT_CSV=str(output))
    table, statistics = done.stdout[: done.stdout.index("Stat")], done.stdout[done.stdout.index("Stat") :]
    assert "BM_mlp" in table  # what the program itself printed comes first
    assert by_thread(statistics) == by_thread(check_cli("stats", output))
    assert "tracemap hook" not in done.stderr


@pytest.mark.long
def test_one_kernel_and_the_form_are_chosen(exact: Path, made: Path, output: Path) -> None:
    vmfb = support.module(made, "embedded")
    command = support.tool_command("iree-run-module", vmfb, "local-sync")
    kernel = "mlp_dispatch_1_matmul_32x128x256_f32"
    recorded = output / "recorded"
    recorded.mkdir()
    support.run(command, support.hooked(exact, recorded))
    chosen: dict[str, str] = {"OUTPUT_CSV": str(output), "BUCKET_COUNT": "4", "GAMMA": "1", "FILTER_NAME": kernel}
    printed = report(exact, command, NO_PROBABILITY_TABLE="", **chosen).stdout
    statistics = printed[printed.index("Stat") :]
    assert f"\n  {support.recorded_calls(recorded)[kernel]} matching calls" in statistics
    assert statistics == check_cli("stats", output, "--buckets", "4", "--gamma", "1", "--no-table")
    none = report(exact, command, **{**chosen, "FILTER_NAME": kernel[:-1]})
    assert "Statistics" not in none.stdout
    assert len(list(output.glob("*.csv"))) == 1


@pytest.mark.long
def test_python_and_plugins_too(exact: Path, made: Path, output: Path) -> None:
    vmfb = support.module(made, "embedded")
    printed = report(exact, support.python_command(vmfb, "local-task"), OUTPUT_CSV=str(output)).stdout
    assert by_thread(printed.partition("\n")[2]) == by_thread(check_cli("stats", output))
    command = support.tool_command("iree-run-module", vmfb, "local-sync", f"--executable_plugin={exact}")
    assert "Statistics for thread iree-run-module:\n" in run(command, {"IREE_HOOK_GAMMA": "1"}).stdout


# ---- the host


def test_threads_of_one_name_have_files_of_their_own(exact: Path, host: Path, kernels: Path, output: Path) -> None:
    command = [host, kernels, "threads", "4", "500", ADD_UP]
    done = report(exact, command, OUTPUT_CSV=str(output))
    names = [f"iree_hook_host{suffix}.csv" for suffix in ("", "-2", "-3", "-4")]
    assert sorted(path.name for path in output.iterdir()) == sorted(names)
    assert by_thread(done.stdout) == by_thread(check_cli("stats", output))
    assert done.stdout.count("  500 matching calls") == 4
    assert done.stderr.count("there are calls of another thread host") == 3
    before = {path: path.read_bytes() for path in output.iterdir()}
    report(exact, command, OUTPUT_CSV=str(output))
    assert all(path.read_bytes() == data for path, data in before.items())


def test_csv_is_as_irees_hook_writes_it(library: Path, host: Path, kernels: Path, output: Path) -> None:
    need("page-faults")
    command = [host, kernels, "threads", "1", "20", TOUCH_PAGES]
    report(library, command, OUTPUT_CSV=str(output), PERF_EVENT_TYPES="page-faults,minor-faults")
    head, *lines = (output / "iree_hook_host.csv").read_text(encoding="ascii").splitlines()
    assert head == "thread,cpu,node,duration_us,page-faults,minor-faults"
    assert len(lines) == 20
    for line in lines:
        thread, cpu, node, duration, *counts = line.split(",")
        assert (thread, int(cpu) < (os.cpu_count() or 1), int(node) >= 0) == ("host", True, True)
        assert duration == f"{float(duration):g}"
        assert counts == [str(TOUCHED)] * 2


def test_a_folder_that_is_not_there_is_said(library: Path, host: Path, kernels: Path, output: Path) -> None:
    done = report(library, [host, kernels, "threads", "1", "20"], OUTPUT_CSV=str(output / "missing"))
    assert done.stderr.count("cannot be made: No such file or directory") == 1
    assert by_thread(done.stdout)


def test_events_are_counted_and_constants_have_no_correlation(
    exact: Path, host: Path, kernels: Path, output: Path
) -> None:
    need("page-faults", "task-clock")
    chosen = {"PERF_EVENT_TYPES": "page-faults,task-clock", "OUTPUT_CSV": str(output)}
    done = report(exact, [host, kernels, "threads", "2", "200", TOUCH_PAGES], **chosen)
    assert done.stderr.count("tracemap hook") == 1  # of the two threads' name
    assert by_thread(done.stdout) == by_thread(check_cli("stats", output))
    assert done.stdout.count(f"  page-faults:\n    mean: {TOUCHED}\n") == 2
    assert done.stdout.count("correlation of duration_ms vs. page-faults: -nan\n") == 2


def test_events_that_cannot_be_counted_are_left_out(library: Path, host: Path, kernels: Path) -> None:
    need("page-faults", "minor-faults")
    missing = [event.name for event in known_events() if not check_event(event).opens][:1]
    names = ["page-fault", "page-faults", *missing, "page-faults", "rxyz", "minor-faults", "ls_any_fills_from_sys.all"]
    done = report(library, [host, kernels, "threads", "2", "50", TOUCH_PAGES], PERF_EVENT_TYPES=",".join(names))
    assert done.stdout.count("correlation of page-faults vs. minor-faults") == 2
    said = done.stderr.splitlines()
    assert len(said) == len(names) - 2  # once, whatever the number of threads
    for name in ("page-fault", *missing, "rxyz", "ls_any_fills_from_sys.all"):
        assert any(line.startswith(f"tracemap hook: the event {name} is left out: ") for line in said)
    assert "page-faults is left out: it is named twice" in done.stderr


def test_more_events_than_are_counted_at_a_time(library: Path, host: Path, kernels: Path) -> None:
    need("page-faults")
    opening = [event.name for event in known_events() if check_event(event).opens]
    raw = [f"r{number:x}" for number in range(20)]
    done = report(library, [host, kernels, "threads", "1", "50"], PERF_EVENT_TYPES=",".join([*opening, *raw]))
    assert f"  {opening[0]}:\n" in done.stdout
    assert done.stderr.count(" is left out: ") >= 4


@pytest.mark.parametrize("way", ["host", "true", "plugin"])
def test_events_are_listed_and_the_program_ends(
    way: str, library: Path, host: Path, kernels: Path, made: Path, output: Path
) -> None:
    """When it begins, whatever it would do: nothing is loaded, run or printed."""
    plugin = support.tool_command("iree-run-module", support.module(made, "embedded"), "local-sync")
    commands: dict[str, list[object]] = {
        "host": [host, kernels, "printing", "2", "100"],
        "true": ["sh", "-c", "echo printed; exit 7"],
        "plugin": [*plugin, f"--executable_plugin={library}"],
    }
    preloaded = {} if way == "plugin" else {"LD_PRELOAD": str(library)}
    variables = {"IREE_HOOK_LIST_EVENT_TYPES": "", "IREE_HOOK_OUTPUT_CSV": str(output)}
    done = run(commands[way], {**variables, **preloaded})
    assert done.stdout == ""
    assert not list(output.iterdir())
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines] == [event.name for event in known_events()]
    assert all(line[40:51] == " [generic] " for line in lines)
    assert [not line[51:] for line in lines] == [check_event(event).opens for event in known_events()]


@pytest.mark.long
def test_the_start_is_skipped(library: Path, host: Path, kernels: Path) -> None:
    """The host calls, waits 400 ms, and calls again."""
    for skipped, left in (("350", 100), ("0.0001", None), ("10000", 0)):
        printed = report(library, [host, kernels, "skip", "1", "100"], SKIP_START_MS=skipped).stdout
        if left is None:
            assert "matching calls" in printed
        else:
            assert printed.count(f"  {left} matching calls") == (left > 0)


def test_threads_that_go_on_at_the_end_are_told(exact: Path, host: Path, kernels: Path, output: Path) -> None:
    done = report(exact, [host, kernels, "stay", "3", "400", ADD_UP], OUTPUT_CSV=str(output))
    assert done.stdout.count("  400 matching calls") == 3
    assert by_thread(done.stdout) == by_thread(check_cli("stats", output))


def test_both_sides_of_a_fork_are_told_once(exact: Path, host: Path, kernels: Path, output: Path) -> None:
    done = report(exact, [host, kernels, "fork", "2", "100"], OUTPUT_CSV=str(output))
    counts = sorted(int(block.splitlines()[1].split()[0]) for block in by_thread(done.stdout))
    assert counts == [100, 100, 200, 200]
    assert by_thread(done.stdout) == by_thread(check_cli("stats", output))


def test_a_runtime_with_irees_hook_is_told_once(library: Path, host: Path, kernels: Path) -> None:
    assert "  100 matching calls" in report(library, [host, kernels, "runtime", "1", "50"], GAMMA="1").stdout
    chosen = report(library, [host, kernels, "runtime", "1", "50"], FILTER_NAME="linked_in").stdout
    assert "  50 matching calls" in chosen


def test_a_killed_program_prints_nothing(library: Path, host: Path, kernels: Path, output: Path) -> None:
    variables = {"LD_PRELOAD": str(library), "IREE_HOOK_OUTPUT_CSV": str(output)}
    command = [str(host), str(kernels), "threads", "2", "1000000000", ADD_UP]
    for number in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True) as program:
            time.sleep(0.3)
            program.send_signal(number)
            printed, _ = program.communicate()
        assert (program.returncode, printed) == (-number, "")
    assert not list(output.iterdir())


def test_calls_without_room_are_said(library: Path, host: Path, kernels: Path) -> None:
    variables = {"LD_PRELOAD": str(library), "IREE_HOOK_GAMMA": "1", "TRACEMAP_HOOK_THREAD_BYTES": str(3 << 20)}
    done = run([host, kernels, "threads", "1", "200000"], variables)
    assert done.stderr.count("is full") == 1
    assert 10_000 < int(done.stdout.splitlines()[1].split()[0]) < 200_000


def test_where_memory_cannot_grow_the_program_runs_on(library: Path, host: Path, kernels: Path) -> None:
    """A limit on the size of files is one on what lies in memory as well."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -f 32; LD_PRELOAD="$0" IREE_HOOK_GAMMA=1 exec "$@"',
            library,
            host,
            kernels,
            "threads",
            "2",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert done.stderr.count("a thread's calls are not recorded: ") == 2
    assert done.stderr.count("File too large") == 2


# ---- which variables count


def test_own_variables_go_first(library: Path, host: Path, kernels: Path, output: Path) -> None:
    csv = output / "csv"
    csv.mkdir()
    others = {"FILTER_NAME": "none", "PERF_EVENT_TYPES": "none", "OUTPUT_CSV": str(csv), "LIST_EVENT_TYPES": "1"}
    variables = {**support.hooked(library, output), **{f"IREE_HOOK_{name}": value for name, value in others.items()}}
    assert support.run([host, kernels, "threads", "2", "100"], variables) == ""
    assert read_recording(output).call_count == 200
    assert not list(csv.iterdir())
    variables["TRACEMAP_HOOK_OUTPUT"] = ""
    done = run([host, kernels, "threads", "2", "100"], variables)
    assert done.stdout == ""
    assert "TRACEMAP_HOOK_OUTPUT names no folder" in done.stderr


def test_without_any_variable_nothing_is_printed(library: Path, host: Path, kernels: Path) -> None:
    done = run([host, kernels, "threads", "2", "100"], {"LD_PRELOAD": str(library)})
    assert done.stdout == ""
    assert done.stderr.count("nothing is recorded") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("BUCKET_COUNT", "0"), ("BUCKET_COUNT", "2000"), ("GAMMA", "-1"), ("SKIP_START_MS", "soon")]
)
def test_values_that_cannot_be_are_said(name: str, value: str, library: Path, host: Path, kernels: Path) -> None:
    done = report(library, [host, kernels, "threads", "1", "100"], **{name: value})
    assert f"IREE_HOOK_{name}={value} " in done.stderr
    assert done.stderr.count("\n") == 1
    assert "    16-ile means: " in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("GAMMA", "-1", "IREE_HOOK_GAMMA=-1 is not a number that it can be and was ignored"),
        ("BUCKET_COUNT", "many", "IREE_HOOK_BUCKET_COUNT=many is not a whole number and was ignored"),
        ("PERF_EVENT_TYPES", "page-fault", "the event page-fault is left out: there is none of that name"),
        ("OUTPUT_CSV", "/missing", "IREE_HOOK_OUTPUT_CSV=/missing is no folder"),
        ("FILTER", "emp*", "IREE_HOOK_FILTER is no variable of IREE's hook and was ignored"),
    ],
)
def test_what_is_wrong_is_said_when_the_program_begins(name: str, value: str, message: str, library: Path) -> None:
    """Before the program prints anything; it loads no executable."""
    script = ["sh", "-c", "echo the program >&2; exit 0"]
    said, own = report(library, script, **{name: value}).stderr.splitlines()
    assert said.startswith(f"tracemap hook: {message}")
    assert own == "the program"


# ---- sanitizers, another processor


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
@pytest.mark.parametrize("mode", ["threads", "churn", "fork", "runtime", "stay"])
def test_sanitizers_find_nothing(mode: str, sanitizer: str, kernels: Path, made: Path, output: Path) -> None:
    support.need_compiler()
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-O1", "-g", "-DTRACEMAP_HOOK_WITHOUT_PRELOAD"]
    program = compile_c(made / f"host-{sanitizer}", *flags, HERE / "host.c", *sources())
    variables = {"IREE_HOOK_PERF_EVENT_TYPES": "page-faults,task-clock", "IREE_HOOK_OUTPUT_CSV": str(output)}
    done = run([program, kernels, mode, "4", "200", "0"], variables)
    assert by_thread(done.stdout)
    assert list(output.iterdir())


def test_the_other_processor(made: Path, output: Path) -> None:
    """AArch64 under emulation."""
    done = run([*emulated_host(made), "fork", "2", "100"], {"IREE_HOOK_OUTPUT_CSV": str(output)})
    assert done.stdout.count("matching calls") == 4
