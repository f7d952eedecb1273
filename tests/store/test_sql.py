"""SQL texts keep to what DuckDB and Spark have in common.

What is looked at are the constants of the modules that ask engines, and the queries as they are sent.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

import pytest

from tests.conftest import Built, Recorded
from tests.support import ROOT, check_cli
from tracemap.core.toolchain import no_progress
from tracemap.runs.sql import open_database
from tracemap.store.costs import Question, query_calls, query_costs
from tracemap.store.layout import Row, store_at
from tracemap.store.lineage import read_names
from tracemap.store.queries import Over, query_comparison, query_trends
from tracemap.store.query_engines import DuckEngine
from tracemap.store.run_headers import Headers, read_headers

ROOM: Final = ROOT / "tracemap" / "store"
OWN: Final = frozenset({"engine", "spark", "spark_session"})
"""Modules that speak to one engine alone."""
IS_SQL: Final = re.compile(r"\b(SELECT|FROM|WHERE|GROUP BY|UNION ALL|CAST\()")

ONE_ONLY: Final = {
    # DuckDB's alone
    "//": "Spark has `div`; write quotient(a, b)",
    "::": "Spark 4 alone knows it, older ones and other engines do not; write CAST",
    r"\bexclude\b": "Spark has `EXCEPT`",
    r"\breplace\s*\(": "a star with replacements in DuckDB, a function of texts in both",
    r"\bquantile\w*\(": "write percentile_cont … WITHIN GROUP",
    r"\bapprox_quantile\b": "Spark has approx_percentile",
    r"\blist\w*\(": "Spark has collect_list",
    r"\bunnest\b": "Spark has explode",
    r"\bbitstring_agg\b": "of DuckDB",
    r"\busing\s+sample\b": "Spark has TABLESAMPLE, and both draw at random",
    r"\bread_\w+\(": "files are views by `Engine.view`",
    r"\brange\(": "a table in Spark, a list in DuckDB",
    r"\bhugeint\b|\bu(tiny|small|big|huge)?int(eger)?\b": "Spark has no such types",
    r"\bvarchar\b|\btext\b": "Spark wants a length; write STRING",
    r"\barg_(min|max)\b": "write max_by, min_by",
    r"\bregexp_matches\b|\bstrftime\b|\bepoch\w*\(": "of DuckDB",
    r"\basof\b|\bpositional\s+join\b|\bcolumns\(": "of DuckDB",
    r"\{'|\[\d": "literals of structs and lists are DuckDB's",
    r"\blimit\s+\d+\s*%": "of DuckDB",
    # Spark's alone
    r"\bdiv\b": "DuckDB has `//`; write quotient(a, b)",
    "`": 'quote by "',
    r"\b(explode|inline|stack|named_struct|nvl|collect_(list|set))\b": "of Spark",
    r"\bapprox_percentile\b|\bpercentile(_approx)?\s*\(": "DuckDB has approx_quantile and quantile",
    r"\blateral\s+view\b|\b(distribute|cluster|sort)\s+by\b|\btablesample\b": "of Spark",
    r"/\*\+": "hints are Spark's",
    "<=>": "write IS NOT DISTINCT FROM",
    r"\brlike\b|\bif\(|\bbigint\(|\bint\(": "of Spark",
    # Both have them, and mean something else by them
    r"\bany_value\b|\bfirst\w*\(|\blast\w*\(": "which row is taken, and whether NULLs count, differs",
    r"\bpercentile_disc\b|\bmode\(": "a double in Spark, and ties are broken otherwise",
    r"\b(corr|covar\w*|stddev\w*|var\w*_\w+|avg|mean)\(": "last digits differ; add up whole numbers",
    r"\blog\(": "to the base of 10 in DuckDB, of e in Spark",
    r"\bround\(": "decimals are rounded otherwise",
    r"\b(hash|random|rand|uuid)\(": "differs by definition",
    r"\blike\b": "a backslash escapes in Spark only",
    r"\A(?!.*as double).*(?<![/*])/(?![/*])": "a quotient of decimals is a double in DuckDB, a decimal in Spark",
    r"\\": "escapes in texts of Spark, stands for itself in DuckDB",
}
"""Pattern -> why not."""
NEVER_NULL: Final = frozenset({"rest desc", "position", "metric", "x"})
"""What is ordered by: NULLs come first in Spark and last in DuckDB. Calls are ordered by metrics that they have."""


def without_texts(query: str) -> str:
    """A query without its comments, and without the values and names that it quotes, which are runs' own."""
    bare = re.sub(r"--[^\n]*", "", query)
    return re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", "x", bare)


def faults_of(query: str) -> list[str]:
    """What of a query is not common to both engines."""
    bare = without_texts(query).lower()
    found = [f"{pattern}: {why}" for pattern, why in ONE_ONLY.items() if re.search(pattern, bare, re.DOTALL)]
    found += [
        f"{match[0]}: a sum's type differs; write CAST(sum(…) AS DECIMAL(38,0))"
        for match in re.finditer(r"(?<!cast\()\bsum\(", bare)
    ]
    for order in re.findall(r"\border by\s+([^()]*?)(?:\)|$)", bare, re.MULTILINE):
        found += [
            f"ORDER BY {key}: where are NULLs?"
            for key in order.split(",")
            if key.strip().rpartition(".")[2] not in NEVER_NULL
        ]
    return found


def constants() -> Iterator[tuple[str, str]]:
    """The texts of SQL in modules that ask any engine, each with its place."""
    for path in sorted(ROOM.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stem in OWN or not _asks_engines(tree):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and IS_SQL.search(node.value):
                yield f"{path.name}:{node.lineno}", node.value


def _asks_engines(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "tracemap.store.query_engines"
        and "Engine" in {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


TEXTS: Final = dict(constants())


@pytest.mark.parametrize("place", TEXTS)
def test_constants_are_common_to_both_engines(place: str) -> None:
    assert faults_of(TEXTS[place]) == []


def test_the_texts_are_found() -> None:
    """Of those that are known, each is among them; or nothing of this would be tested."""
    from tracemap.store import costs
    from tracemap.store import queries as asking

    known = {asking.OP_COSTS, costs.REDUCE, costs.SPLIT}
    assert known <= set(TEXTS.values())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a // b FROM t",
        "SELECT a div b FROM t",
        "SELECT a::BIGINT FROM t",
        "SELECT * EXCLUDE (a) FROM t",
        "SELECT quantile_cont(a, 0.5) FROM t",
        "SELECT approx_quantile(a, 0.5) FROM t",
        "SELECT approx_percentile(a, 0.5) FROM t",
        "SELECT list(a) FROM t",
        "SELECT unnest(a) FROM t",
        "SELECT bitstring_agg(a) FROM t",
        "SELECT any_value(a) FROM t",
        "SELECT a FROM t USING SAMPLE 10%",
        "SELECT `a` FROM t",
        "SELECT sum(a) FROM t",
        "SELECT a / b FROM t",
        "SELECT row_number() OVER (ORDER BY nullable) FROM t",
        "SELECT a FROM t WHERE b = 'x' ORDER BY nullable",
        "SELECT CAST(a AS VARCHAR) FROM t",
        "SELECT avg(a) FROM t",
    ],
)
def test_what_one_engine_alone_has_is_seen(text: str) -> None:
    assert faults_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'a // b', \"exclude\" FROM t -- a :: b",
        "SELECT CAST(sum(a) AS DECIMAL(38,0)) FROM t",
        "SELECT a, row_number() OVER (PARTITION BY b ORDER BY rest DESC, position) FROM t",
    ],
)
def test_what_is_common_is_let_through(text: str) -> None:
    assert faults_of(text) == []


# ---- as they are sent


class _Noting(DuckEngine):
    """DuckDB, which notes what it is asked."""

    def note_in(self, texts: list[str]) -> None:
        self._texts = texts

    def keep(self, name: str, query: str) -> None:
        self._texts.append(query)
        super().keep(name, query)

    def rows(self, query: str) -> list[Row]:
        self._texts.append(query)
        return super().rows(query)


@pytest.fixture(scope="module")
def headers(built: Built, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Headers:
    store = tmp_path_factory.mktemp("store")
    words: Sequence[str | Path] = ("--map", built("hand_mlp"), "--store", store)
    check_cli("store", "add", recorded("hand_mlp"), *words)
    check_cli("store", "add", recorded("hand_mlp", ".csv"), *words, "--tag", "other=1")
    return read_headers(store_at(store), skip_bad=False)


def test_queries_are_common_to_both_engines_as_they_are_sent(headers: Headers) -> None:
    names = read_names(headers.listing, headers.maps_of_models)
    texts: list[str] = []
    with open_database() as connection:
        engine = _Noting(connection, 0, no_progress)
        engine.note_in(texts)
        for from_calls in (False, True):
            metrics = ("cpu_ns", "duration_ns")
            query_costs(engine, headers, names, Question(("host", "tag.other"), metrics, from_calls))
        for over in get_args(Over):
            query_trends(engine, headers, names, "cpu_ns", over, 1.02)
        for most_exact in (0, 1_000_000):
            query_calls(engine, headers, names, "cpu_ns", ("host",), most_exact)
        before, after = (Headers([row], headers.listing) for row in headers.rows)
        query_comparison(engine, (before, after), names, "cpu_ns", 1.02)
    assert len(texts) >= 12
    assert [faults_of(text) for text in texts if faults_of(text)] == []
