"""Answers about what changed in a fleet: over time, and between two sets of its runs. Each is a document of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tracemap.codec import Count, Document, Record
from tracemap.store.model import Looked
from tracemap.units import Integer, Text, Unknown


class FleetName(Record, frozen=True):
    """An op of a model in the maps of several compilations; `op` is its key, or `all ops`.

    `name`: of the operation; `file`: where it stands in the model; `line`: its line there; `scope`: its scope.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text


class FleetPoint(Record, frozen=True):
    """A point of a series: what an op costs in an invocation, the median over the hosts of a night.

    Of all ops it is the sum of these medians, over the ops that cost something in all nights of the series.

    `night`: the date, or the compiler; `cost`: in the unit of the metric.
    """

    night: str
    cost: int


class FleetChange(Record, frozen=True):
    """An op became slower or faster.

    `kind`: `slower` or `faster`; `op`: which; `cpu_model`: on which processors, null: on all; `host`: on which host
    alone, null: on all that have the processor; `night`: the first one with the new cost; `night_low`: the first
    one that it may have been, with 95 %; `night_high`: the last one; `ratio`: the new cost by the old one;
    `ratio_low`: the lower end of its interval, which holds it in about 85 of 100 cases; `ratio_high`: the upper end
    of it; `before`: what it cost in an invocation; `after`: what it costs since; `hosts`: how many tell of it;
    `hosts_agree`: how many show it by themselves; `nights_before`: how many nights it rests on before;
    `nights_after`: how many since; `chance`: how often chance makes as much of a change anywhere, corrected for all
    that was looked at; `series`: its nights, none of all ops where no op costs something in all of them.
    """

    kind: Literal["slower", "faster"]
    op: FleetName
    cpu_model: Text
    host: Text
    night: str
    night_low: str
    night_high: str
    ratio: float
    ratio_low: float
    ratio_high: float
    before: Integer
    after: Integer
    hosts: Count
    hosts_agree: Count
    nights_before: Count
    nights_after: Count
    chance: float
    series: tuple[FleetPoint, ...]


class FleetHost(Record, frozen=True):
    """A host that is unlike others of its processor.

    `host`: its name; `cpu_model`: its processor; `op`: in which op, beyond what it is in all of them; `ratio`: its
    cost by that of the others; `z`: by how many robust standard deviations; `hosts`: how many have the processor;
    `chance`: how often chance makes as much of a difference anywhere.
    """

    host: str
    cpu_model: str
    op: FleetName
    ratio: float
    z: float
    hosts: Count
    chance: float


class FleetSeries(Record, frozen=True):
    """What an op costs on a processor: `op`: which; `cpu_model`: its processor; `points`: its nights."""

    op: FleetName
    cpu_model: str
    points: tuple[FleetPoint, ...]


class FleetTrend(Record, frozen=True):
    """What changed in the runs of a model's function, the least likely by chance first, and hosts unlike others.

    `model`: what it is called; `function`: what was called of it; `inputs`: the types of its arguments, null: not
    known; costs of other functions and sizes are not laid beside these;
    `nights`: how many dates, or compilers; `hosts`: how many; `cpu_models`: how many processors; `series`: in how many
    series changes were looked for; `untold`: runs left out, as they do not tell when or where they were recorded;
    `changes`: what became slower or faster; `outliers`: hosts that are unlike others; `dearest`: the ops that cost
    most, night by night, on each processor; `in_order`: the dates in their order, or the compilers in that in which
    they came into use.
    """

    model: str
    function: Text
    inputs: Text
    nights: Count
    hosts: Count
    cpu_models: Count
    series: Count
    untold: Count
    changes: tuple[FleetChange, ...]
    outliers: tuple[FleetHost, ...]
    dearest: tuple[FleetSeries, ...]
    in_order: tuple[str, ...]


class FleetTrends(Document, frozen=True, kw_only=True):
    """What changed in a fleet.

    `metric`: which costs were looked at; `over`: what grows with time; `models`: the findings of each model.
    Version 2 tells functions of a model apart, version 3 sizes of inputs, version 4 in which order nights are;
    series of all ops are sums in it.
    """

    schema_version: Literal[4] = 4
    kind: Literal["fleet-trends"] = "fleet-trends"
    metric: str
    over: Literal["date", "compiler"]
    models: tuple[FleetTrend, ...]
    looked: Looked


class FleetDifference(Record, frozen=True):
    """An op costs more or less in one set of runs than in another.

    `kind`: `slower` or `faster`; `op`: which; `cpu_model`: on which processors, null: on all; `ratio`: the new cost
    by the old one; `ratio_low`: the lower end of its 95 % interval; `ratio_high`: the upper end of it; `before`:
    what it cost in an invocation; `after`: what it costs; `hosts`: how many are on both sides; `runs`: how many of
    theirs there are; `chance`: how often chance makes as much of a difference anywhere.
    """

    kind: Literal["slower", "faster"]
    op: FleetName
    cpu_model: Text
    ratio: float
    ratio_low: float
    ratio_high: float
    before: Integer
    after: Integer
    hosts: Count
    runs: Count
    chance: float


class ModelDifferences(Record, frozen=True):
    """What differs in the runs of a model's function.

    `model`: what it is called; `function`: what was called of it; `inputs`: the types of its arguments; `compared`:
    pairs of op and processor that hosts of both sides have; `lonely`: those that none has; `untold`: runs left out, as
    they do not tell where they were recorded; `differences`: the least likely by chance first.
    """

    model: str
    function: Text
    inputs: Text
    compared: Count
    lonely: Count
    untold: Count
    differences: tuple[FleetDifference, ...]


class FleetComparison(Document, frozen=True, kw_only=True):
    """What ops cost in one set of runs and in another.

    `metric`: which costs were looked at; `models`: the findings of each model; `before`: what was looked at of one
    side; `after`: of the other. Version 2 tells functions of a model apart, version 3 sizes of inputs.
    """

    schema_version: Literal[3] = 3
    kind: Literal["fleet-comparison"] = "fleet-comparison"
    metric: str
    models: tuple[ModelDifferences, ...]
    before: Looked
    after: Looked


def titles(models: Sequence[FleetTrend] | Sequence[ModelDifferences]) -> list[str]:
    """What models are called in a report, with the function and the inputs where there are several of one."""
    found = []
    for each in models:
        others = [other for other in models if other.model == each.model]
        function = f", function {_shown(each.function)}" if len({other.function for other in others}) > 1 else ""
        inputs = {other.inputs for other in others if other.function == each.function}
        found.append(each.model + function + (f", inputs {_shown(each.inputs)}" if len(inputs) > 1 else ""))
    return found


def _shown(said: Text) -> str:
    return "–" if isinstance(said, Unknown) else said
