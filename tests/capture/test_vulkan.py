"""Vulkan from a model to a page, on any device; Mesa's runs on the processor.

The other side of each comparison is made without tracemap: outputs are those of the same model on a processor, and the
time of a site is a bare SQL sum over the events of its command.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.checks import check_attribution, check_bounds, check_page, count_of_run
from tests.conftest import Built
from tests.support import Corpus, Json, check_cli, has_device, json_cli, made_once, run_cli
from tracemap.map.bundle import load
from tracemap.runs.model import BY_STOPS, Clock
from tracemap.runs.runfile import read_run

pytestmark = pytest.mark.skipif(
    not has_device("vulkan"),
    reason="no Vulkan device: as root on Debian, apt-get install libvulkan1 mesa-vulkan-drivers",
)

TARGET = "--iree-vulkan-target=vp_android_baseline_2022"
"""What Mesa's device on the processor runs and computes rightly: others need other sizes of subgroups."""

MODELS = ("hand_attention", "hand_convnet", "hand_mlp", "hand_repeat12", "jax_mlp")
RUNS = ("hand_loop", "hand_mlp", "hand_multifunc.roundtrip", "hand_repeat12", "jax_mlp", "torch_mlp")
INEXACT = {"split-evenly", "commands-by-order", "sites-merged", "sites-without-command", "values-unknown"}
"""What is said where an event has no place of its own."""

Recorded = Callable[[str], Path]
"""Flag file -> its run on Vulkan."""


@pytest.fixture(scope="session")
def on_vulkan(made: Path, samples: Corpus) -> Built:
    """Makes, once, the bundle of a sample for Vulkan; tests must not change it."""

    def build(model: str) -> Path:
        bundle = made / f"{model}-vulkan.tracemap"
        with made_once(bundle) as missing:
            if missing:
                check_cli("build", samples.models()[model], "--device", "vulkan", "-o", bundle, "--", TARGET)
        return bundle

    return build


@pytest.fixture(scope="session")
def recorded_on_vulkan(made: Path, samples: Corpus, on_vulkan: Built) -> Recorded:
    """Makes, once, a run of a sample on Vulkan, with IREE's own profile beside it."""

    def record(flags: str) -> Path:
        run = made / f"{flags}-vulkan.parquet"
        with made_once(run) as missing:
            if missing:
                samples.record(flags, on_vulkan(samples.model_of(flags)), run, ("--iterations", "3", "--keep-profile"))
        return run

    return record


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_outputs_are_those_of_a_processor(model: str, built: Built, on_vulkan: Built, tmp_path: Path) -> None:
    """On made-up inputs, which are random and the same for both."""
    check_cli("run", built(model), f"--output=@{tmp_path / 'y.npy'}")
    done = run_cli("run", on_vulkan(model), f"--expected-output=@{tmp_path / 'y.npy'}")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("flags", RUNS)
def test_every_event_has_its_site(
    flags: str, samples: Corpus, on_vulkan: Built, recorded_on_vulkan: Recorded, tmp_path: Path
) -> None:
    bundle, run, page = on_vulkan(samples.model_of(flags)), recorded_on_vulkan(flags), tmp_path / "page.html"
    attribution: Json = json.loads(check_cli("attribute", run, "--map", bundle, "--format", "json", "--html", page))
    check_attribution(attribution, run)
    check_bounds(attribution)
    check_page(page, load(bundle).graph.module.name)
    said = {each["slug"] for each in attribution["diagnostics"]}
    assert not said & INEXACT
    assert "device-clock" in said
    assert sum(site["calls"] for site in attribution["sites"]) == count_of_run(run, "kind = 'dispatch'") > 0
    assert count_of_run(run, "kind = 'dispatch' AND (command_index IS NULL OR duration_ns IS NULL)") == 0


@pytest.mark.long
def test_twelve_sites_of_one_kernel_are_told_apart(on_vulkan: Built, recorded_on_vulkan: Recorded) -> None:
    """Each has the events of its own command: a bare sum by the number of the command says the same."""
    run, bundle = recorded_on_vulkan("hand_repeat12"), on_vulkan("hand_repeat12")
    with duckdb.connect() as connection:
        query = f"SELECT command_index, sum(duration_ns)::BIGINT FROM '{run}' WHERE NOT warmup AND kind = 'dispatch'"
        rows = connection.execute(f"{query} GROUP BY 1").fetchall()
    attribution = json_cli("attribute", run, "--map", bundle)
    found = {site["site"]: site["metrics"]["duration_ns"] for site in attribution["sites"]}
    index_of = {site.id: site.command_index for site in load(bundle).graph.sites}
    assert {index_of[site]: cost["total"] + cost["outliers"] for site, cost in found.items()} == dict(rows)
    assert len(rows) == 12


def test_the_clock_of_the_device_is_brought_to_that_of_the_host(recorded_on_vulkan: Recorded, on_vulkan: Built) -> None:
    """Rows take as long as the device says, and lie where the host's clock has them: all of a call is explained."""
    run = recorded_on_vulkan("hand_mlp")
    header = read_run(run).header
    assert header is not None
    assert (header.device, header.clock) == ("vulkan", Clock.DEVICE)
    assert [(metric.name, metric.clock) for metric in read_run(run).metrics] == [("duration_ns", Clock.DEVICE)]
    assert count_of_run(run, "kind = 'execute' AND submitted_ns <= start_ns") > 0
    assert count_of_run(run, "kind = 'execute' AND submitted_ns IS NULL") == 0
    elapsed = header.elapsed
    assert sum(part for part in elapsed.values() if isinstance(part, int)) == header.elapsed_ns
    assert elapsed.profiler_found_by == BY_STOPS
    assert isinstance(elapsed.explained_ns, int)
    assert isinstance(header.elapsed_ns, int)
    assert elapsed.explained_ns >= 0.9 * header.elapsed_ns
    text = check_cli("attribute", run, "--map", on_vulkan("hand_mlp"), "--notes")
    assert "note [device-clock]: kernels were timed by the device, on its own clock" in text


@pytest.mark.long
@pytest.mark.parametrize("flags", ["hand_mlp", "hand_loop", "hand_dynamic"])
def test_a_program_that_is_ended_leaves_whole_calls_only(
    flags: str, samples: Corpus, on_vulkan: Built, tmp_path: Path
) -> None:
    """A device writes the dispatches of a call before its submissions: those of the call behind the last stay out."""
    bundle, run = on_vulkan(samples.model_of(flags)), tmp_path / "run.parquet"
    samples.record(flags, bundle, run, ("--seconds", "0.5"))
    header = read_run(run).header
    assert header is not None
    calls = f"SELECT count(DISTINCT invocation), count(*) FROM '{run}' WHERE NOT warmup AND kind = 'dispatch' "
    ((invocations, dispatches),) = duckdb.execute(calls).fetchall()
    assert invocations == header.iterations
    per_call = f"{calls} GROUP BY invocation"
    assert {count for _, count in duckdb.execute(per_call).fetchall()} == {dispatches / invocations}
    assert count_of_run(run, "invocation IS NULL") == 0
    said = {each["slug"] for each in json_cli("attribute", run, "--map", bundle)["diagnostics"]}
    assert not said & {"invocations-unknown", "invocation-unknown", *INEXACT}


def test_a_profile_of_a_device_is_attributed_as_its_run(
    recorded_on_vulkan: Recorded, on_vulkan: Built, tmp_path: Path
) -> None:
    """Moved away from its run, as one that was recorded elsewhere; its warm-up is counted, as nothing tells of it."""
    bundle, run = on_vulkan("hand_repeat12"), recorded_on_vulkan("hand_repeat12")
    profile = shutil.copy(run.with_name(f"{run.name}.ireeprof"), tmp_path / "elsewhere.ireeprof")
    whole, own = (json_cli("attribute", each, "--map", bundle) for each in (profile, run))
    assert [site["site"] for site in whole["sites"]] == [site["site"] for site in own["sites"]]
    calls = {site["calls"] for site in whole["sites"]}
    assert calls == {count_of_calls(run)}
    assert not INEXACT & {each["slug"] for each in whole["diagnostics"]}
    with duckdb.connect() as connection:
        (measured,) = connection.execute(f"SELECT sum(duration_ns) FROM '{run}' WHERE kind = 'dispatch'").fetchall()
    (total,) = whole["metrics"]
    costs = [site["metrics"]["duration_ns"] for site in whole["sites"]]
    of_sites = sum(cost["total"] + cost["outliers"] for cost in costs)
    assert of_sites == measured[0] <= total["measured"]


def count_of_calls(run: Path) -> int:
    """The calls of a run's function, warm-up included."""
    with duckdb.connect() as connection:
        ((count,),) = connection.execute(f"SELECT count(DISTINCT invocation) FROM '{run}'").fetchall()
    return int(count)
