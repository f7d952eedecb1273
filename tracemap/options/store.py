"""What `tracemap store` can be asked: runs to add, and questions about all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.options.option import Options, option, required
from tracemap.options.results import DISPATCH_HELP, KEEP_DISTURBED_HELP, RULE_HELP, Rule, memory_option

_STORE_HELP: Final = "The store: a folder, or a bucket: s3://BUCKET/PREFIX."
_STORE_VARIABLE: Final = "TRACEMAP_STORE"
_GROUP_BY_HELP: Final = "Tell runs apart by columns of their headers: host,cpu_model,compiler,date,tag.NAME."
_ENGINE_HELP: Final = "What adds up: duckdb, in this process, or Spark: local[*] or spark://HOST:PORT."


@dataclass(frozen=True, slots=True)
class StoreAddOptions(Options):
    """Which store runs go to, and what is said of them."""

    store: str | Path = required(_STORE_HELP, metavar="DIR", variable=_STORE_VARIABLE, path="address")
    map: Path | None = option(
        None, "The bundle of the runs.  [default: found as tracemap attribute does]", metavar="BUNDLE"
    )
    model: str | None = option(
        None, "What the model is called; runs of one model are compared.  [default: the bundle's name]", metavar="NAME"
    )
    tag: tuple[str, ...] = option((), "Say something of the runs, such as branch=main; may be repeated.", metavar="K=V")
    host: str | None = option(None, "The machine, where a run does not tell it.", metavar="NAME")
    cpu_model: str | None = option(None, "Its processor, where a run does not tell it.", metavar="NAME")
    recorded: str | None = option(
        None, "When it was recorded, where a run does not tell it: 2026-11-20 or 2026-11-20T02:30:00Z.", metavar="TIME"
    )
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the result says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json"] = option("text", "What to print.")
    memory: int = memory_option()


@dataclass(frozen=True, slots=True)
class AskOptions(Options):
    """Which runs of a store a question is about, and where the answer goes."""

    store: str | Path = required(_STORE_HELP, metavar="DIR", variable=_STORE_VARIABLE, path="address")
    where: tuple[str, ...] = option(
        (),
        "Only runs of which this holds: host=ci-*, date>=2026-11-01, tag.branch=main; may be repeated.",
        metavar="COND",
    )
    skip_bad: bool = option(False, "Leave out runs whose files are damaged, and count them.")
    format: Literal["text", "json", "csv"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    force: bool = option(False, "Replace the output if it exists.")
    memory: int = memory_option()


@dataclass(frozen=True, slots=True)
class StoreListOptions(AskOptions):
    """Which runs to list."""


@dataclass(frozen=True, slots=True)
class StoreQueryOptions(AskOptions):
    """Which costs to add up, and over what."""

    group_by: tuple[str, ...] = option((), _GROUP_BY_HELP, metavar="A,B", split=True)
    metric: tuple[str, ...] = option((), "The metrics.  [default: time]", metavar="A,B", split=True)
    calls: bool = option(False, "Add up all single calls anew, instead of what each run came to when it was added.")
    engine: str = option("duckdb", _ENGINE_HELP, metavar="ENGINE")
    totals: bool = option(False, "Sums of all runs, instead of what one invocation costs.")
    top: int = option(20, "Ops of each group in the text's table; 0: all.", metavar="N", at_least=0)


@dataclass(frozen=True, slots=True)
class StoreSitesOptions(AskOptions):
    """Of which calls percentiles are told."""

    group_by: tuple[str, ...] = option((), _GROUP_BY_HELP, metavar="A,B", split=True)
    metric: str = option("cpu_ns", "What of the calls.", metavar="NAME")
    engine: str = option("duckdb", _ENGINE_HELP, metavar="ENGINE")
    top: int = option(20, "Sites of each group in the text's table; 0: all.", metavar="N", at_least=0)


_THRESHOLD_HELP: Final = "Name what changed by more than this, beyond chance, in percent."


@dataclass(frozen=True, slots=True)
class StoreTrendOptions(AskOptions):
    """What to look for over time."""

    over: Literal["date", "compiler"] = option(
        "date", "What grows with time: the day of the recording, or the compiler."
    )
    metric: str = option("cpu_ns", "The costs that are looked at.", metavar="NAME")
    threshold: float = option(2.0, _THRESHOLD_HELP, metavar="PERCENT", at_least=0.1, at_most=1000)
    html: Path | None = option(None, "Write a page too: a small picture for each change.", metavar="PAGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCompareOptions(AskOptions):
    """Which runs to compare with which."""

    before: tuple[str, ...] = required("Runs of the one side: date=2026-11-01; may be repeated.", metavar="COND")
    after: tuple[str, ...] = required("Runs of the other side: date=2026-11-02; may be repeated.", metavar="COND")
    metric: str = option("cpu_ns", "The costs that are compared.", metavar="NAME")
    threshold: float = option(2.0, _THRESHOLD_HELP, metavar="PERCENT", at_least=0.1, at_most=1000)
