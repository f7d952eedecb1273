"""The hook's samples: both samplers, both kinds of executables, both drivers, all endings."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.hook import support
from tests.hook.test_host import HERE, compile_c, emulated_host, host, kernels, library, output
from tests.recording import sample
from tests.support import SAMPLES
from tracemap.capture.noise import exec_with_parent, niceness_to_run_at
from tracemap.core.errors import RunEmpty, RunInvalid, RunVersion, TracemapError
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN
from tracemap.hook import HookSettings, settings_environment
from tracemap.hook.compiling import sources
from tracemap.machine.images import read_images
from tracemap.runs.hook.process import STILL_LOADED, HookExecutable, known_executables, read_head, read_processes
from tracemap.runs.hook.recording import duration_ns, read_recording, start_ns
from tracemap.runs.hook.samples import OUTSIDE, SAMPLES_FILE, GrowingSamples, HookSamples, read_samples, resolve

__all__ = ["host", "kernels", "library", "output"]

ELFS = ("embedded", "system")
DRIVERS = ("local-task", "local-sync")
PERF, TIMER = ("cycles", "cpu-clock"), ("timer",)
MEANS = {"perf": PERF, "timer": TIMER}
HZ = 997
MATMUL = HERE / "matmul.mlir"
ADD_UP = "1"
"""The host's kernel that takes a microsecond or so."""


def perf_is_allowed() -> bool:
    """Whether the kernel lets this process sample itself, in user space at least."""
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    return paranoid.is_file() and (int(paranoid.read_text(encoding="ascii")) <= 2 or os.geteuid() == 0)


@pytest.fixture(params=sorted(MEANS))
def sampler(request: pytest.FixtureRequest) -> str:
    if request.param == "perf" and not perf_is_allowed():
        pytest.skip("perf_event_open is forbidden here (perf_event_paranoid)")
    return str(request.param)


def matmul_command(tool: str, vmfb: Path, driver: str, *flags: str) -> list[str]:
    inputs = ["--function=matmul", "--input=512x512xf32=0.5", "--input=512x512xf32=0.25"]
    return [str(find_tool(tool)), f"--module={vmfb}", f"--device={driver}", *inputs, *flags]


def inside(samples: HookSamples) -> float:
    return float((samples.located["executable"] != OUTSIDE).mean())


def check_counts(samples: HookSamples, hz: int = HZ) -> None:
    """As many samples as the CPU time asks for, in a wide band: machines are noisy, threads give way to others.

    A timer's periods are of the wall clock, with at most a sample in each: a thread that has waited for its processor
    is sampled once more as it goes on. Where slices are as short as a period, that is half of all samples.
    """
    expected = sum(thread.header["cpu_ns"] for thread in samples.threads) * hz / 1e9
    most = 20.0
    for thread in samples.threads:
        head = thread.header
        most += hz / 1e9 * (head["last_ns"] - head["first_ns"] if thread.sampler == "timer" else 1.5 * head["cpu_ns"])
    assert 0.4 * expected <= len(samples.located) <= most
    assert all(thread.hz == hz for thread in samples.threads)


def check_growing(folder: Path, growing: Path) -> None:
    """Files that grow in steps are counted as they are read whole, and each sample is read once."""
    whole = read_samples(folder)
    times = whole.located["time_ns"][whole.located["executable"] != OUTSIDE]
    begin_ns = int(times[len(times) // 4])
    growing.mkdir()
    counter = GrowingSamples(growing)
    with pytest.raises(RunEmpty):
        counter.inside_since(begin_ns)
    for path in folder.glob("*.jsonl"):
        shutil.copy(path, growing)
    for part in (0.2, 0.2, 0.55, 1.0):
        for path in folder.glob("*.samples"):
            written, head = path.read_bytes(), read_head(path, SAMPLES_FILE)
            assert head is not None
            (growing / path.name).write_bytes(written[: max(head.data_offset, int(part * len(written)))])
        there = read_samples(growing).located
        counted = (there["executable"] != OUTSIDE) & (there["time_ns"] >= begin_ns)
        assert counter.inside_since(begin_ns) == int(counted.sum())
        assert counter.read == len(there)
    assert counter.inside_since(begin_ns) == int((times >= begin_ns).sum())
    assert counter.inside_since(0) == len(times)
    assert counter.read == len(whole.located)


# ---- the stock runtime


@pytest.mark.long
@pytest.mark.parametrize("elf", ELFS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_samples_of_a_kernel_that_computes_lie_in_it(
    sampler: str, driver: str, elf: str, library: Path, made: Path, output: Path
) -> None:
    vmfb = support.module(made, elf, MATMUL)
    command = matmul_command("iree-benchmark-module", vmfb, driver, "--benchmark_min_time=0.5s")
    support.run(command, support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler=sampler))
    assert not list(output.glob("*.calls"))
    samples = read_samples(output)
    assert {thread.sampler for thread in samples.threads} <= set(MEANS[sampler])
    assert all(thread.header["closed"] and not thread.lost for thread in samples.threads)
    check_counts(samples)
    assert inside(samples) > 0.8
    assert 0 < samples.overhead < 0.3
    (executable,) = samples.executables
    (image,) = read_images(vmfb)
    assert [(name, image.function_by_name[name].low) for name, _ in executable.kernels] == list(executable.kernels)
    resolved = samples.located[samples.located["executable"] == 0]
    assert (image.functions_at(resolved["address"]) >= 0).mean() > 0.95
    assert len(np.unique(resolved["address"])) > 5
    check_growing(output, output / "growing")


@pytest.mark.long
def test_kernels_have_the_share_of_samples_that_they_have_of_time(
    sampler: str, library: Path, made: Path, output: Path
) -> None:
    """The other side is the time of recorded calls, of the same execution.

    A call between whose begin and end other programs ran lasts longer by the clock, but is not sampled more often; so
    each counts as at most three times the median of its kernel. Where others ran most of the time that is not enough:
    so the program runs ahead of others, as recorded ones do, and what the sampler does wrong is wrong in each of three
    tries.
    """
    wrong = []
    for attempt in range(3):
        spent, seen = times_and_samples(sampler, library, made, output / str(attempt))
        assert set(seen) <= set(spent)
        assert seen.total() > 300
        wrong = [kernel for kernel in spent if not has_its_share(kernel, spent, seen)]
        if not wrong:
            break
    assert not wrong


def has_its_share(kernel: str, spent: Counter[str], seen: Counter[str]) -> bool:
    """Whether a kernel's part of the samples is that of the time, as far as so many samples can tell."""
    share = spent[kernel] / spent.total()
    error = (share * (1 - share) / seen.total()) ** 0.5
    return bool(abs(seen[kernel] / seen.total() - share) < 5 * error + 0.01)


def times_and_samples(sampler: str, library: Path, made: Path, output: Path) -> tuple[Counter[str], Counter[str]]:
    """The time of each kernel's calls, and its samples.

    A rate may fall into step with calls, which all take much the same time: several rates together do not.
    """
    vmfb = sample(made, "jax_gpt2_4l")
    program = [str(find_tool("iree-benchmark-module")), f"--module={vmfb}", "--device=local-sync"]
    flags = [f"--flagfile={SAMPLES / 'flags' / 'jax_gpt2_4l.flags'}", "--benchmark_min_time=150x"]
    command = exec_with_parent([*program, *flags], niceness_to_run_at(UNKNOWN))
    (image,) = read_images(vmfb)
    spent: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for hz in (HZ - 211, HZ, HZ + 307):
        folder = output / str(hz)
        folder.mkdir(parents=True)
        support.run(command, support.hooked(library, folder, sample_hz=hz, sampler=sampler))
        (process,) = read_recording(folder).processes
        (thread,) = process.threads
        durations = duration_ns(process, thread.calls)
        for number in np.unique(thread.calls["kernel"]):
            own = durations[thread.calls["kernel"] == number]
            spent[process.kernels[int(number)].name] += int(np.minimum(own, 3 * np.median(own)).sum())
        samples = read_samples(folder)
        functions = image.functions_at(samples.located["address"][samples.located["executable"] != OUTSIDE])
        seen.update(image.functions[int(place)].name for place in functions[functions >= 0])
    return spent, seen


def test_the_output_is_as_without_samples(sampler: str, library: Path, made: Path, output: Path) -> None:
    for elf in ELFS:
        vmfb = support.module(made, elf)
        for driver in DRIVERS:
            command = support.tool_command("iree-run-module", vmfb, driver)
            variables = support.hooked(library, output, sample_hz=5000, sampler=sampler)
            assert support.run(command, variables) == support.run(command)


def test_no_samples_without_asking(library: Path, made: Path, output: Path) -> None:
    support.run(
        support.tool_command("iree-run-module", support.module(made, "embedded"), "local-task"),
        support.hooked(library, output),
    )
    assert not list(output.glob("*.samples"))
    with pytest.raises(RunEmpty):
        read_samples(output)


@pytest.mark.long
def test_what_samples_cost_is_told_on_a_busy_machine_too(sampler: str, library: Path, made: Path, output: Path) -> None:
    """What others do between two readings of a clock is not the samples' time: once it was 170 % of the threads'."""
    command = matmul_command(
        "iree-benchmark-module", support.module(made, "embedded", MATMUL), "local-sync", "--benchmark_min_time=0.05s"
    )
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        for number in range(8):
            folder = output / str(number)
            folder.mkdir()
            support.run(command, support.hooked(library, folder, record_calls=False, sample_hz=HZ, sampler=sampler))
            assert 0 < read_samples(folder).overhead < 0.3
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.few(1)
def test_a_killed_program_leaves_its_samples(sampler: str, library: Path, made: Path, output: Path) -> None:
    vmfb = support.module(made, "embedded", MATMUL)
    command = matmul_command("iree-benchmark-module", vmfb, "local-sync", "--benchmark_min_time=600s")
    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler=sampler)
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    try:
        wait_for_samples(output, 300)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    samples = read_samples(output)
    assert len(samples.located) >= 300
    assert inside(samples) > 0.8
    assert not any(thread.header["closed"] for thread in samples.threads)
    for thread in samples.threads:
        assert np.all(np.diff(thread.samples["time_ns"].astype(np.int64)) >= 0)


def test_what_a_program_tells_while_its_samples_are_read_is_known(
    sampler: str, library: Path, host: Path, kernels: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes on tells of an executable, then calls it: both may come behind the first look at what it tells."""
    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler=sampler)
    support.run([host, kernels, "threads", "1", "20000", ADD_UP], variables)
    (path,), before = output.glob("*.jsonl"), read_samples(output)
    support.tell_late(path, monkeypatch)
    assert inside(read_samples(output)) == inside(before) > 0


def wait_for_samples(output: Path, wanted: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(RunEmpty):
            if len(read_samples(output).located) >= wanted:
                return
        time.sleep(0.05)
    pytest.fail("the program was not sampled")


@pytest.mark.long
def test_each_load_of_a_module_has_its_own_samples(sampler: str, library: Path, made: Path, output: Path) -> None:
    """Loads of one module lie at the same addresses often; time tells them apart."""
    for elf in ELFS:
        folder = output / elf
        folder.mkdir()
        command = support.python_command(support.module(made, elf), "local-sync", loads=60, calls=40)
        support.run(command, support.hooked(library, folder, record_calls=False, sample_hz=5000, sampler=sampler))
        files = read_processes(folder)
        (executables,) = (known_executables(file, files).values() for file in files.values())
        assert len(executables) == 60
        assert all(one.loaded_ns < one.unloaded_ns < STILL_LOADED for one in executables)
        assert len({one.base for one in executables}) < 60
        samples = read_samples(folder)
        assert len(np.unique(samples.located["executable"])) > 30


# ---- the host of the tests


def test_samples_and_calls_are_of_one_clock(
    sampler: str, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    """A sample in the kernel's code lies in the time of a recorded call, and hardly any other does."""
    variables = support.hooked(library, output, sample_hz=5000, sampler=sampler)
    support.run([host, kernels, "threads", "1", "300000", ADD_UP], variables)
    (process,) = read_recording(output).processes
    (thread,) = process.threads
    assert len(thread.calls) == 300_000
    begins = start_ns(process, thread.calls)
    ends = begins + duration_ns(process, thread.calls)
    samples = read_samples(output)
    check_counts(samples, 5000)
    times = samples.located["time_ns"]
    place = np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)
    running = (begins[place] <= times) & (times <= ends[place])
    own = samples.located["executable"] != OUTSIDE
    assert own.mean() > 0.5
    assert running[own].mean() > 0.95
    assert running[~own].mean() < 0.5  # the hook's own code, around the kernel's


def test_each_thread_has_a_file_of_its_own(
    sampler: str, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    variables = support.hooked(library, output, record_calls=False, sample_hz=2000, sampler=sampler)
    support.run([host, kernels, "threads", "8", "50000", ADD_UP], variables)
    samples = read_samples(output)
    assert len({thread.tid for thread in samples.threads}) == 8
    assert all(len(thread.samples) > 10 and thread.header["closed"] for thread in samples.threads)
    assert {str(row) for row in samples.located["tid"]} == {str(thread.tid) for thread in samples.threads}


def test_both_sides_of_a_fork_are_sampled(sampler: str, library: Path, host: Path, kernels: Path, output: Path) -> None:
    variables = support.hooked(library, output, record_calls=False, sample_hz=2000, sampler=sampler)
    support.run([host, kernels, "fork", "2", "60000", ADD_UP], variables)
    samples = read_samples(output)
    files = read_processes(output)
    assert len(samples.processes) == 2
    child = next(place for place, stamp in enumerate(samples.processes) if files[stamp].parent in files)
    parent_threads = {int(n) for n in np.unique(samples.located["thread"][samples.located["process"] != child])}
    child_threads = {int(n) for n in np.unique(samples.located["thread"][samples.located["process"] == child])}
    assert (len(parent_threads), len(child_threads)) == (1, 3)
    # The child calls the kernel that its parent loaded, then one that it loads itself: the same object once more.
    of_child = samples.located[samples.located["process"] == child]
    assert (of_child["executable"] != OUTSIDE).mean() > 0.7
    forked = files[samples.processes[child]].forked_ns
    assert forked > 0
    assert of_child["time_ns"].min() > forked


def test_the_runtimes_own_hook_is_sampled(sampler: str, library: Path, host: Path, kernels: Path, output: Path) -> None:
    variables = support.hooked(library, output, sample_hz=5000, sampler=sampler)
    support.run([host, kernels, "runtime", "1", "300000"], variables)
    samples = read_samples(output)
    assert len(samples.located) > 20
    assert {executable.elf for executable in samples.executables} == {"system", "runtime"}


def test_a_program_keeps_its_own_profiling_signal(library: Path, host: Path, kernels: Path, output: Path) -> None:
    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler="timer")
    assert support.run([host, kernels, "profiled", "1", "200000", ADD_UP], variables) == "1\n"
    assert len(read_samples(output).located) > 20


def forbid_perf() -> None:
    """Answer EPERM to perf_event_open, as containers do, by a filter of system calls."""
    number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    load, equal, answer = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("<HBBI", *line)
        for line in (
            (load, 0, 0, 0),  # the number of the system call
            (equal, 0, 1, number),
            (answer, 0, 0, 0x00050000 | errno.EPERM),
            (answer, 0, 0, 0x7FFF0000),  # allowed
        )
    )
    buffer = ctypes.create_string_buffer(program)
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters, 0, 0):  # no new privileges; a filter
        os._exit(77)


@pytest.mark.parametrize("asked", ["auto", "perf"])
def test_where_perf_is_forbidden_a_timer_samples(
    asked: str, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler=asked)
    done = subprocess.run(
        [str(host), str(kernels), "threads", "2", "100000", ADD_UP],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=forbid_perf,
    )
    assert done.returncode == 0, done.stderr
    if asked == "perf":
        assert done.stderr.count("samples are not recorded: Operation not permitted") == 2
        with pytest.raises(RunEmpty):
            read_samples(output)
        return
    assert not done.stderr
    samples = read_samples(output)
    assert samples.sampler == "timer"
    assert {thread.perf_error for thread in samples.threads} == {"Operation not permitted"}
    check_counts(samples)


@pytest.mark.long
def test_periods_of_a_counter_are_those_of_its_rate(made: Path, host: Path, kernels: Path, output: Path) -> None:
    """The kernel's clock of the thread in the place of cycles: a counter of 1 GHz that is there everywhere."""
    if not perf_is_allowed():
        pytest.skip("perf_event_open is forbidden here (perf_event_paranoid)")
    flags = ["-DCYCLES_TYPE=PERF_TYPE_SOFTWARE", "-DCYCLES_CONFIG=PERF_COUNT_SW_TASK_CLOCK"]
    library = support.built_library(made, "cycles", flags)
    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ)
    support.run([host, kernels, "threads", "4", "100000", ADD_UP], variables)
    samples = read_samples(output)
    assert samples.sampler == "cycles"
    (period,) = {thread.header["period"] for thread in samples.threads}
    assert period == pytest.approx(1e9 / HZ, rel=0.05)
    check_counts(samples)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TRACEMAP_HOOK_SAMPLER", "magic", "it is auto, perf, timer or cpu-timer"),
        ("TRACEMAP_HOOK_SAMPLE_HZ", "1000000", "is too many: 20000 samples"),
        ("TRACEMAP_HOOK_SAMPLE_HZ", "-5", "is not a whole number"),
    ],
)
def test_wrong_settings_are_said(
    name: str, value: str, said: str, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    variables = {**os.environ, **support.hooked(library, output, sample_hz=HZ), name: value}
    command = [str(host), str(kernels), "threads", "1", "100", ADD_UP]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert said in done.stderr


@pytest.mark.few(1)
def test_a_full_file_is_said_and_counted(sampler: str, library: Path, host: Path, kernels: Path, output: Path) -> None:
    chosen = support.hooked(library, output, record_calls=False, sample_hz=5000, sampler=sampler, thread_bytes=16384)
    command = [str(host), str(kernels), "threads", "1", "400000", ADD_UP]
    done = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True, check=True)
    assert done.stderr.count("file of samples is full") == 1
    samples = read_samples(output)
    (thread,) = samples.threads
    assert (
        len(samples.located) + thread.lost > thread.header["cpu_ns"] / 1e9 * 5000 / 2
    )  # all that did not fit, not the last ones
    assert max(path.stat().st_size for path in output.glob("*.samples")) <= 16384
    assert [item.slug for item in samples.diagnostics] == ["samples-lost"]


def test_where_no_file_can_grow_the_program_runs_on(
    sampler: str, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))

    variables = support.hooked(library, output, record_calls=False, sample_hz=HZ, sampler=sampler)
    done = subprocess.run(
        [str(host), str(kernels), "threads", "2", "20000", ADD_UP],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 0
    assert done.stderr.count("samples are not recorded: there is no room for them: File too large") == 2
    with pytest.raises(RunEmpty):
        read_samples(output)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
@pytest.mark.parametrize("mode", ["threads", "churn", "fork", "runtime", "profiled"])
def test_sanitizers_find_nothing(
    mode: str, sanitizer: str, sampler: str, kernels: Path, made: Path, output: Path
) -> None:
    support.need_compiler()
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-O1", "-g", "-DTRACEMAP_HOOK_WITHOUT_PRELOAD"]
    program = compile_c(made / f"host-{sanitizer}", *flags, HERE / "host.c", *sources())
    variables = {**settings_environment(output), "TRACEMAP_HOOK_SAMPLE_HZ": "5000", "TRACEMAP_HOOK_SAMPLER": sampler}
    # Empty kernels are over in a moment: of few calls no sample need fall into one.
    calls = ("100000", "0") if mode == "runtime" else ("5000", ADD_UP)
    support.run([program, kernels, mode, "4", *calls], variables)
    samples = read_samples(output)
    assert len(samples.located) > 0
    assert read_recording(output).call_count >= 5000


def test_the_other_processor(made: Path, output: Path) -> None:
    """AArch64 under emulation, which has no perf interface."""
    settings = HookSettings(record_calls=False, sample_hz=499)
    support.run([*emulated_host(made), "fork", "2", "30000", ADD_UP], settings_environment(output, settings))
    samples = read_samples(output)
    assert len(samples.processes) == 2
    assert {thread.sampler for thread in samples.threads} == {"timer"}
    assert all(len(thread.samples) > 3 for thread in samples.threads)
    assert inside(samples) > 0.5


# ---- where a sample belongs


def test_addresses_that_are_used_again_are_told_apart_by_time() -> None:
    executables = [
        HookExecutable(0, "first", "embedded", 0x1000, 0x100, 10, 20),
        HookExecutable(1, "second", "embedded", 0x1080, 0x100, 30, STILL_LOADED),
        HookExecutable(2, "linked in", "runtime", 0, 0, 0),
        HookExecutable(3, "above all", "embedded", (1 << 63) - 0x10, 0xF, 0),
    ]
    rows = [
        # ip, time, executable, offset
        (0x1000, 10, 0, 0),
        (0x10FF, 20, 0, 0xFF),
        (0x1100, 15, OUTSIDE, 0),  # just behind the first
        (0x0FFF, 15, OUTSIDE, 0),
        (0x1000, 9, OUTSIDE, 0),  # before it was loaded
        (0x1080, 25, OUTSIDE, 0),  # between the two
        (0x1080, 31, 1, 0),
        (0x1050, 31, OUTSIDE, 0),
        (0, 31, OUTSIDE, 0),
        ((1 << 64) - 1, 31, OUTSIDE, 0),
        ((1 << 63) - 8, 31, 3, 8),
    ]
    ip, time_ns = (np.array([row[place] for row in rows], dtype=np.uint64) for place in (0, 1))
    found, offset = resolve(ip, time_ns, executables)
    assert list(zip(found.tolist(), offset.tolist(), strict=True)) == [row[2:] for row in rows]


def test_what_was_loaded_last_has_an_address_that_two_claim() -> None:
    """The unloading of libdl is seen a moment late: the place may be taken already."""
    executables = [
        HookExecutable(1, "later", "system", 0x1000, 0x100, 15, 40),
        HookExecutable(0, "earlier", "system", 0x1000, 0x200, 10, 16),
    ]
    found, offset = resolve(np.array([0x1010, 0x1150], "u8"), np.array([15, 15], "u8"), executables)
    assert (found.tolist(), offset.tolist()) == ([0, 1], [0x10, 0x150])


# ---- files that are damaged


@pytest.fixture(scope="module")
def recorded(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    support.need_compiler()
    folder = tmp_path_factory.mktemp("samples")
    kernels_so = compile_c(made / "kernels.so", "-O2", "-shared", "-fPIC", HERE / "kernels.c")
    program = compile_c(made / "host", "-O2", HERE / "host.c")
    variables = support.hooked(support.built_library(made), folder, record_calls=False, sample_hz=5000, sampler="timer")
    support.run([program, kernels_so, "threads", "1", "50000", ADD_UP], variables)
    return folder


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def change(folder: Path, edit: Callable[[bytearray], None]) -> None:
    (path,) = folder.glob("*.samples")
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def test_another_version_or_kind_is_refused(copy: Path) -> None:
    def version(data: bytearray) -> None:
        data[8] = 9

    def magic(data: bytearray) -> None:
        data[:8] = b"TMAPHOOK"

    change(copy, version)
    with pytest.raises(RunVersion):
        read_samples(copy)
    change(copy, magic)
    with pytest.raises(RunInvalid, match="no record file"):
        read_samples(copy)


def test_a_sample_without_a_time_is_refused(copy: Path) -> None:
    def no_time(data: bytearray) -> None:
        data[8192 + 8 : 8192 + 16] = bytes(8)

    change(copy, no_time)
    with pytest.raises(RunInvalid, match="sample 0 of"):
        read_samples(copy)


def test_an_unknown_sampler_is_refused(copy: Path) -> None:
    def sampler_name(data: bytearray) -> None:
        data[:] = data.replace(b'"sampler":"timer"', b'"sampler":"<img>"')

    change(copy, sampler_name)
    with pytest.raises(RunInvalid, match="no sampler"):
        read_samples(copy)


def test_files_cut_anywhere(copy: Path) -> None:
    (path,) = copy.glob("*.samples")
    data = path.read_bytes()
    whole = read_samples(copy)
    for size in (0, 1, 31, 32, 63, 300, 2047, 2100, 4096, 4200, 8191, 8192, 8193, 8215, 8216, len(data) - 1):
        path.write_bytes(data[:size])
        with contextlib.suppress(TracemapError):
            cut = read_samples(copy)
            lost = sum(thread.lost for thread in cut.threads)
            assert len(cut.located) + lost == len(whole.located)
            assert lost > 0


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".samples", ".jsonl"])
def test_files_with_bytes_changed_at_random(suffix: str, copy: Path) -> None:
    (path,) = copy.glob(f"*{suffix}")
    data = path.read_bytes()
    places = [place for place in range(len(data)) if data[place]][:3000]
    dice = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for place in dice.choices(places, k=dice.choice((1, 1, 2, 8))):
            damaged[place] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            samples = read_samples(copy)
            assert samples.overhead >= 0
        except TracemapError:
            refused += 1
    assert refused > 30
