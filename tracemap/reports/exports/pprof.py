"""pprof's profile.proto: a sample per op and dispatch site, with its call stack (google/pprof, proto/).

The message types are declared here and built by protobuf's runtime. Generated code would be tied to a release of the
runtime. Fields that tracemap never writes are left out.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from tracemap._version import __version__
from tracemap.core.files import PPROF_MARK
from tracemap.core.sanitize import without_controls
from tracemap.core.units import Integer, Unknown
from tracemap.reports.advice import basis
from tracemap.reports.escaping import file_line
from tracemap.reports.exports.charges import NANOSECONDS, Charge, Ledger, StackFrame, from_extra

_FORM: Final = "pprof"
_PACKAGE: Final = "perftools.profiles"

# Message -> field -> (number, type). `*`: repeated; capitalised types are messages.
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "Profile": {
        "sample_type": (1, "*ValueType"),
        "sample": (2, "*Sample"),
        "mapping": (3, "*Mapping"),
        "location": (4, "*Location"),
        "function": (5, "*Function"),
        "string_table": (6, "*string"),
        "duration_nanos": (10, "int64"),
        "comment": (13, "*int64"),
        "default_sample_type": (14, "int64"),
    },
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Sample": {"location_id": (1, "*uint64"), "value": (2, "*int64"), "label": (3, "*Label")},
    "Label": {"key": (1, "int64"), "str": (2, "int64")},
    "Mapping": {
        "id": (1, "uint64"),
        "filename": (5, "int64"),
        "build_id": (6, "int64"),
        "has_functions": (7, "bool"),
        "has_filenames": (8, "bool"),
        "has_line_numbers": (9, "bool"),
    },
    "Location": {"id": (1, "uint64"), "mapping_id": (2, "uint64"), "line": (4, "*Line")},
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Function": {"id": (1, "uint64"), "name": (2, "int64"), "system_name": (3, "int64"), "filename": (4, "int64")},
}
_UNITS: Final = {NANOSECONDS: "nanoseconds"}
"""pprof's names of units; it shows other units unchanged."""


def pprof(ledger: Ledger) -> bytes:
    """The profile, compressed with gzip as pprof expects; deterministic.

    Raises:
        ToolMissing: protobuf is not installed.
        UsageInvalid: a metric adds up to more than 64 bits.
    """
    ledger.check_range(_FORM, negative=True)
    message: bytes = _Profile(profile_class()(), ledger).fill().SerializeToString(deterministic=True)
    packed = io.BytesIO()
    with gzip.GzipFile(filename=PPROF_MARK, fileobj=packed, mode="wb", mtime=0) as file:
        file.write(message)
    return packed.getvalue()


@cache
def profile_class() -> Any:  # noqa: ANN401 - protobuf makes it at run time
    """The message class `Profile`, made from `_MESSAGES`."""
    with from_extra(_FORM):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            descriptor = message.field.add(name=field_name, number=number)
            descriptor.label = descriptor.LABEL_OPTIONAL if plain == kind else descriptor.LABEL_REPEATED
            if plain in _MESSAGES:
                descriptor.type, descriptor.type_name = descriptor.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
            else:
                descriptor.type = descriptor.Type.Value(f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


@dataclass(frozen=True)
class _Profile:
    """A profile under construction, with its tables of strings, functions and locations."""

    message: Any
    ledger: Ledger
    _strings: dict[str, int] = field(default_factory=lambda: {"": 0})
    _functions: dict[tuple[str, str], int] = field(default_factory=dict)
    _locations: dict[StackFrame, int] = field(default_factory=dict)

    def fill(self) -> Any:  # noqa: ANN401 - as above
        """Write the whole ledger to the message, and return it."""
        self._header()
        for charge in self.ledger.charges:
            stack = [self._location(frame) for frame in reversed(charge.stack)]
            sample = self.message.sample.add(location_id=stack, value=charge.amounts)
            for key, text in _labels(charge):
                sample.label.add(key=self._string(key), str=self._string(text))
        self.message.string_table.extend(self._strings)
        return self.message

    def _header(self) -> None:
        message, ledger = self.message, self.ledger
        module, run = ledger.graph.module, ledger.attribution.run
        for metric in ledger.metrics:
            unit = _UNITS.get(metric.unit, metric.unit)
            message.sample_type.add(type=self._string(without_controls(metric.name)), unit=self._string(unit))
        message.default_sample_type = self._string(without_controls(ledger.metrics[0].name))
        has = {"has_functions": True, "has_filenames": True, "has_line_numbers": True}
        name, build = self._string(without_controls(module.name)), self._string(without_controls(module.sha256))
        message.mapping.add(id=1, filename=name, build_id=build, **has)
        if not isinstance(run.elapsed_ns, Unknown):
            message.duration_nanos = run.elapsed_ns
        message.comment.extend(map(self._string, (f"creator: tracemap {__version__}", *comments(ledger))))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, frame: StackFrame) -> int:
        known = self._locations.get(frame)
        if known is not None:
            return known
        number = self._locations[frame] = len(self._locations) + 1
        location = self.message.location.add(id=number, mapping_id=1)
        location.line.add(function_id=self._function(frame), line=known_line(frame.line))
        return number

    def _function(self, frame: StackFrame) -> int:
        name, file = frame.name, "" if isinstance(frame.file, Unknown) else frame.file
        known = self._functions.get((name, file))
        if known is not None:
            return known
        number = self._functions[name, file] = len(self._functions) + 1
        text = self._string(name)
        self.message.function.add(id=number, name=text, system_name=text, filename=self._string(file))
        return number


def known_line(line: Integer) -> int:
    """A line for formats with 0 as unknown."""
    return 0 if isinstance(line, Unknown) else line


def comments(ledger: Ledger) -> Sequence[str]:
    """Comments on the whole profile: the rule, the basis of the numbers, and the diagnostics."""
    attribution = ledger.attribution
    texts = [f"costs are split over ops by the rule {attribution.rule.value}", basis(ledger.metrics, totals=True)]
    texts += [f"{diagnostic.message} [{diagnostic.slug}]" for diagnostic in attribution.diagnostics]
    return [without_controls(text) for text in texts]


def _labels(charge: Charge) -> list[tuple[str, str]]:
    """Labels to select samples by (`pprof -tagfocus`)."""
    if charge.op is None:
        return []
    labels = [("op", charge.op.id), ("site", charge.work), ("kernel", charge.kernel)]
    return [*labels, ("line", without_controls(file_line(charge.op.file, charge.op.line)))]
