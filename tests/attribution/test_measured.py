"""The rule `measured` on real runs, sampled and simulated, compared with plain SQL over their rows."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tracemap
from tests.attribution.test_kernel_lines import ops_by_loop
from tests.conftest import Built, Recorded
from tests.support import Corpus, check_cli, json_cli, made_once, run_cli
from tracemap.attribution.weights import wilson
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.machine.code import instructions_of, loops_of
from tracemap.machine.images import kernel_images, read_images
from tracemap.map.bundle import load
from tracemap.options.results import Rule

Json = dict[str, Any]
SAMPLED = {
    "hand_attention": ("--iterations", "10000", "--sample", "4999"),
    "jax_gpt2_4l": ("--iterations", "300", "--sample", "4999"),
}


def sampled(model: str, made: Path, samples: Corpus, built: Built) -> tuple[Path, Path]:
    """A bundle, and a run with many samples."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    bundle, run = built(model), made / f"{model}.sampled.parquet"
    with made_once(run) as missing:
        if missing:
            samples.record(model, bundle, run, SAMPLED[model])
    return bundle, run


def simulated(model: str, made: Path, samples: Corpus, built: Built) -> tuple[Path, Path]:
    """A bundle, and a run with simulated counts."""
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind")
    bundle, run = built(model), made / f"{model}.simulated.parquet"
    with made_once(run) as missing:
        if missing:
            samples.record(model, bundle, run, ("--iterations", "3", "--cache-sim"))
    return bundle, run


def rows_of_steps(run: Path, metric: str) -> list[tuple[str | None, int | None, int]]:
    """Kernel, step and sum of a metric."""
    query = (
        f"SELECT kernel, step, CAST(sum({metric}) AS BIGINT) FROM read_parquet('{run}') "
        "WHERE kind = 'step' AND NOT coalesce(warmup, false) GROUP BY ALL"
    )
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def samples_in(run: Path, kernel: str) -> list[tuple[int, int]]:
    """Address and number of samples in a kernel."""
    query = (
        f"SELECT address, CAST(sum(samples) AS BIGINT) FROM read_parquet('{run}') "
        "WHERE kind = 'step' AND kernel = ? AND address IS NOT NULL AND NOT coalesce(warmup, false) GROUP BY ALL"
    )
    with duckdb.connect() as connection:
        return connection.execute(query, [kernel]).fetchall()


def metric_of(result: Json, name: str) -> Json:
    (found,) = (metric for metric in result["metrics"] if metric["name"] == name)
    assert isinstance(found, dict)
    return found


def unattributed_of(result: Json, metric: str) -> dict[str, int]:
    return {row["reason"]: row["metrics"][metric] for row in result["unattributed"] if row["metrics"][metric]}


@pytest.mark.long
@pytest.mark.parametrize("model", list(SAMPLED))
def test_samples_in_kernels_reach_ops(model: str, made: Path, samples: Corpus, built: Built) -> None:
    bundle, run = sampled(model, made, samples, built)
    result = json_cli("attribute", run, "--map", bundle)
    assert result["rule"] == "measured"
    seen = rows_of_steps(run, "samples")
    inside = sum(count for kernel, _, count in seen if kernel is not None)
    assert inside > 300
    assert metric_of(result, "samples")["measured"] == sum(count for _, _, count in seen)
    assert metric_of(result, "samples")["attributed"] >= 0.95 * inside
    lost = unattributed_of(result, "samples")
    assert set(lost) <= {"kernel-overhead", "outside-kernels"}
    assert lost.get("outside-kernels", 0) == sum(count for kernel, _, count in seen if kernel is None)


@pytest.mark.long
@pytest.mark.parametrize("model", list(SAMPLED))
def test_the_ops_of_a_loop_have_at_least_what_was_seen_in_it(
    model: str, made: Path, samples: Corpus, built: Built
) -> None:
    """Together, as in a loop no place of a sample tells the op, and as rows of a kernel may not tell the site."""
    bundle, run = sampled(model, made, samples, built)
    result = json_cli("attribute", run, "--map", bundle)
    got = {each["op"]: each["metrics"]["samples"]["attributed"] for each in result["ops"]}
    own: Counter[frozenset[str]] = Counter()
    images = read_images(load(bundle).module_path)
    for kernel in load(bundle).graph.kernels:
        ((image, function),) = kernel_images(images, kernel.name)
        ops_in = ops_by_loop(kernel, loops_of(instructions_of(image, function)))
        for address, count in samples_in(run, kernel.name):
            # Code may be of an op that does no work of its own: what is seen there is its loop's.
            own[frozenset(op for op in ops_in(address) if op in got)] += count
    own.pop(frozenset(), None)
    assert own
    for ops, count in own.items():
        assert sum(got[op] for op in ops) >= count, ops


@pytest.mark.long
@pytest.mark.parametrize("model", list(SAMPLED))
def test_times_follow_the_samples(model: str, made: Path, samples: Corpus, built: Built) -> None:
    """Where all of a fused site's samples are known, its time is split as they are; the interval holds the share."""
    bundle, run = sampled(model, made, samples, built)
    result = json_cli("attribute", run, "--map", bundle)
    fused = [site for site in load(bundle).graph.sites if len(site.members) > 1 and not site.initializer]
    costs = {each["op"]: each["metrics"] for each in result["ops"]}
    totals = {each["site"]: each["metrics"] for each in result["sites"]}
    judged = 0
    alone = load(bundle).graph.sites_of_op
    for site in fused:
        seen, time = totals[site.id]["samples"]["total"], totals[site.id]["cpu_ns"]["total"]
        for member in site.members:
            if len(alone[member.op]) > 1 or seen < 100:
                continue
            cost = costs[member.op]["cpu_ns"]
            assert abs(cost["attributed"] - time * costs[member.op]["samples"]["attributed"] / seen) <= 1
            assert 0 <= cost["likely_low"] <= cost["attributed"] <= cost["likely_high"] <= time
            assert cost["low"] == 0
            judged += 1
    assert judged


@pytest.mark.long
def test_the_split_of_a_matmul_and_its_epilogue_is_not_the_models(made: Path, samples: Corpus, built: Built) -> None:
    """What is measured differs from the estimate, and both balance to the same sums."""
    bundle, run = sampled("jax_gpt2_4l", made, samples, built)
    by_rule = {rule: json_cli("attribute", run, "--map", bundle, "--rule", rule) for rule in ("measured", "model")}
    sums = {rule: metric_of(result, "cpu_ns")["measured"] for rule, result in by_rule.items()}
    assert sums["measured"] == sums["model"]
    assert by_rule["measured"]["ops"] != by_rule["model"]["ops"]
    modelled = next(each for each in by_rule["model"]["ops"])
    assert modelled["metrics"]["cpu_ns"]["likely_low"] is None


@pytest.mark.long
def test_every_way_to_ask_goes_by_what_was_seen(made: Path, samples: Corpus, built: Built, tmp_path: Path) -> None:
    """The page of `report`, the page of `attribute`, and Python; another rule on request."""
    bundle, run = sampled("hand_attention", made, samples, built)
    check_cli("report", bundle, run, "-o", tmp_path / "report.html")
    check_cli("attribute", run, "--map", bundle, "--html", tmp_path / "attribute.html")
    for page in ("report.html", "attribute.html"):
        assert "rule <code>measured</code>" in (tmp_path / page).read_text(encoding="utf-8")
    check_cli("report", bundle, run, "-o", tmp_path / "root.html", "--rule", "root")
    assert "rule <code>root</code>" in (tmp_path / "root.html").read_text(encoding="utf-8")
    assert tracemap.attribute([run], load(bundle)).rule is Rule.MEASURED


def test_the_rule_is_refused_where_nothing_was_seen(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    for command in (("attribute", recorded("hand_mlp"), "--map", built("hand_mlp")),
                    ("report", built("hand_mlp"), recorded("hand_mlp"), "-o", tmp_path / "page.html")):  # fmt: skip
        done = run_cli(*command, "--rule", "measured")
        assert done.returncode == 2
        assert "record with --sample or --cache-sim" in done.stderr
        assert not (tmp_path / "page.html").exists()
    assert json_cli("attribute", recorded("hand_mlp"), "--map", built("hand_mlp"))["rule"] == "code"


@pytest.mark.long
@pytest.mark.parametrize("model", ["hand_attention", "hand_repeat6_calls"])
def test_simulated_counts_reach_ops(model: str, made: Path, samples: Corpus, built: Built) -> None:
    bundle, run = simulated(model, made, samples, built)
    result = json_cli("attribute", run, "--map", bundle)
    assert result["rule"] == "measured"
    for metric in ("Ir", "Dr", "D1mr"):
        total = metric_of(result, metric)
        assert total["measured"] == sum(count for _, _, count in rows_of_steps(run, metric))
        assert total["attributed"] >= 0.95 * total["measured"]
    spread = [note["message"] for note in result["diagnostics"] if note["slug"] == "steps-spread"]
    assert len(spread) == 1
    assert "number of workgroups" in spread[0]
    sites = {site.kernel: [] for site in load(bundle).graph.sites}  # type: dict[str, list[int]]
    instructions = {each["site"]: each["metrics"]["Ir"]["total"] for each in result["sites"]}
    for site in load(bundle).graph.sites:
        sites[site.kernel].append(instructions[site.id])
    for counts in sites.values():
        assert max(counts) - min(counts) <= 1, "sites of a kernel run the same code equally often"


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("trials", [30, 100, 1000])
def test_the_interval_holds_the_true_share_nearly_as_often_as_promised(share: float, trials: int) -> None:
    """Its coverage, summed over all outcomes: on average over shares 95 %, somewhat less at single ones."""
    covered = 0.0
    for hits in range(trials + 1):
        low, high = wilson(hits, trials)
        if low <= share <= high:
            ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
            covered += math.exp(ways + hits * math.log(share) + (trials - hits) * math.log(1 - share))
    assert covered > 0.92
