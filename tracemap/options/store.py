"""Options of `tracemap store`: runs to add, and queries over all runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.options.option import Options, count, name_list, option, required
from tracemap.options.results import DISPATCH_HELP, KEEP_OUTLIERS_HELP, RULE_HELP, Rule, memory_option

_STORE_HELP: Final = "The store: a folder, or a bucket as s3://BUCKET/PREFIX."
_STORE_VARIABLE: Final = "TRACEMAP_STORE"
_GROUP_BY_HELP: Final = "Columns to group runs by, from host,cpu_model,compiler,date,tag.NAME."
_ENGINE_HELP: Final = "Query engine: duckdb (in this process), or Spark as local[*] or spark://HOST:PORT."


@dataclass(frozen=True, slots=True)
class StoreAddOptions(Options):
    """Options of `store add`: the store, and facts about the runs to add."""

    store: str | Path = required(_STORE_HELP, metavar="DIR", variable=_STORE_VARIABLE, path="address")
    map: Path | None = option(
        None, "Bundle of the runs.  [default: found as `tracemap attribute` does]", metavar="BUNDLE"
    )
    model: str | None = option(
        None,
        "Name of the model. Runs of one model are compared with each other.  [default: the bundle's name]",
        metavar="NAME",
    )
    tag: tuple[str, ...] = option((), "Tag for the runs, such as branch=main.  [repeatable]", metavar="K=V")
    host: str | None = option(None, "Name of the machine, if a run does not record it.", metavar="NAME")
    cpu_model: str | None = option(None, "Processor model, if a run does not record it.", metavar="NAME")
    recorded: str | None = option(
        None, "Time of recording, if a run does not record it: 2026-11-20 or 2026-11-20T02:30:00Z.", metavar="TIME"
    )
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the result carries a warning.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json"] = option("text", "Output format.")
    memory: int = memory_option()


@dataclass(frozen=True, slots=True)
class AskOptions(Options):
    """Options of all queries: the store, its runs to include, and the output."""

    store: str | Path = required(_STORE_HELP, metavar="DIR", variable=_STORE_VARIABLE, path="address")
    where: tuple[str, ...] = option(
        (),
        "Only runs that meet this condition: host=ci-*, date>=2026-11-01, tag.branch=main.  [repeatable]",
        metavar="COND",
    )
    skip_bad: bool = option(False, "Skip runs whose files are damaged, and count them.")
    format: Literal["text", "json", "csv"] = option("text", "Output format.")
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
    memory: int = memory_option()


@dataclass(frozen=True, slots=True)
class StoreListOptions(AskOptions):
    """Options of `store list`: the runs to list."""


@dataclass(frozen=True, slots=True)
class StoreQueryOptions(AskOptions):
    """Options of `store query`: metrics to add up, and groups of runs."""

    group_by: tuple[str, ...] = name_list(_GROUP_BY_HELP)
    metric: tuple[str, ...] = name_list("Metrics to add up.  [default: time]")
    calls: bool = option(
        False, "Recompute the sums from individual calls, instead of using those stored with each run."
    )
    engine: str = option("duckdb", _ENGINE_HELP, metavar="ENGINE")
    totals: bool = option(False, "Show sums over all runs, instead of the cost per invocation.")
    top: int = count(20, "Ops per group in the text table; 0: all.", at_least=0)


@dataclass(frozen=True, slots=True)
class StoreSitesOptions(AskOptions):
    """Options of `store sites`: percentiles of kernel calls per dispatch site."""

    group_by: tuple[str, ...] = name_list(_GROUP_BY_HELP)
    metric: str = option("cpu_ns", "Metric to show percentiles of.  [default: cpu_ns]", metavar="NAME")
    engine: str = option("duckdb", _ENGINE_HELP, metavar="ENGINE")
    top: int = count(20, "Dispatch sites per group in the text table; 0: all.", at_least=0)


_THRESHOLD_HELP: Final = "Report statistically significant changes above this percentage."


@dataclass(frozen=True, slots=True)
class StoreTrendOptions(AskOptions):
    """Options of `store trend`: changes to look for over time."""

    over: Literal["date", "compiler"] = option("date", "Time axis: the day of recording, or the compiler release.")
    metric: str = option("cpu_ns", "Metric to examine.  [default: cpu_ns]", metavar="NAME")
    threshold: float = option(2.0, _THRESHOLD_HELP, metavar="PERCENT", at_least=0.1, at_most=1000)
    html: Path | None = option(None, "Also write a page with a small chart per change.", metavar="PAGE")
    svg: Path | None = option(
        None, "Also write a badge for a README: a line of the program's cost by night, and its change.", metavar="FILE"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCompareOptions(AskOptions):
    """Options of `store compare`: two sets of runs to compare."""

    before: tuple[str, ...] = required(
        "Condition for the runs before the change: date=2026-11-01.  [repeatable]", metavar="COND"
    )
    after: tuple[str, ...] = required(
        "Condition for the runs after the change: date=2026-11-02.  [repeatable]", metavar="COND"
    )
    metric: str = option("cpu_ns", "Metric to compare.  [default: cpu_ns]", metavar="NAME")
    threshold: float = option(2.0, _THRESHOLD_HELP, metavar="PERCENT", at_least=0.1, at_most=1000)
