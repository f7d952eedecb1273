"""The trace graph: ops of the model, the compiled program, and what links them; what a bundle's `map.json` holds.

What one record names is in the same graph: `graph.references` refuses a map in which it is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Literal

from tracemap.codec import Document, Record
from tracemap.diagnostics import Diagnostic
from tracemap.functions import Function
from tracemap.graph.ops import Op, OpId
from tracemap.graph.program import CallPath, CommandBuffer, Kernel, Schedule, Site, Transfer
from tracemap.units import Text, plural


class SourceFile(Record, frozen=True):
    """A text kept in the bundle.

    `name` is the path as locations name it; `path` its place below the bundle's `source/`; `language` is
    `mlir` or `python`. The first source file of a bundle is the model.
    """

    name: str
    path: str
    language: Literal["mlir", "python"]


class ModuleInfo(Record, frozen=True):
    """The compiled module: name, SHA-256 of `module.vmfb`, compiler version and the flags it was compiled with."""

    name: str
    sha256: str
    iree_compiler: str
    flags: tuple[str, ...]


LIBRARY = ("*site-packages/*", "*dist-packages/*", "*/lib/python3*", "<*")
"""File name patterns (as of a shell) of frames in libraries and generated code, where nothing else was asked for."""


def entry_name(kernel: str) -> str:
    """The name that a kernel's code has on a device: PTX knows no `$`, say, and IREE writes `_` for each such byte."""
    return re.sub(rb"[^A-Za-z0-9_]", b"_", kernel.encode()).decode()


ROWS_VERSION: Final = 3
"""The last version of `map.json` that was a record for each op and site; it is read as well."""


class TraceGraph(Document, frozen=True, kw_only=True, dict=True):
    """All that `tracemap build` found out about a model. As JSON it is a `map.json` of version 3.

    `schedules` are those of the entry points whose ways could be told. `library` are patterns of files that are not the
    user's own; frames of the user's come first.
    """

    schema_version: Literal[3] = ROWS_VERSION
    kind: Literal["map"] = "map"
    module: ModuleInfo
    functions: tuple[Function, ...]
    ops: tuple[Op, ...]
    sites: tuple[Site, ...]
    kernels: tuple[Kernel, ...]
    command_buffers: tuple[CommandBuffer, ...]
    transfers: tuple[Transfer, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    sources: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    library: tuple[str, ...] = LIBRARY

    def __repr__(self) -> str:
        """How much there is of what: the whole has hundreds of thousands of letters."""
        ops, sites, kernels = plural(len(self.ops), "op"), plural(len(self.sites), "site"), len(self.kernels)
        return f"TraceGraph({self.module.name!r}, {ops}, {sites}, {plural(kernels, 'kernel')})"

    @cached_property
    def op_by_id(self) -> Mapping[str, Op]:
        """Ops by id."""
        return {op.id: op for op in self.ops}

    @cached_property
    def site_by_id(self) -> Mapping[str, Site]:
        """Sites by id."""
        return {site.id: site for site in self.sites}

    @cached_property
    def transfer_by_id(self) -> Mapping[str, Transfer]:
        """Transfers by id."""
        return {transfer.id: transfer for transfer in self.transfers}

    @cached_property
    def kernel_by_name(self) -> Mapping[str, Kernel]:
        """Kernels by name."""
        return {kernel.name: kernel for kernel in self.kernels}

    @cached_property
    def kernel_of_entry(self) -> Mapping[str, str]:
        """The names of kernels by those that their code has, and by their own.

        A name that is no kernel's own and that the code of two would have tells neither.
        """
        plain = [entry_name(kernel.name) for kernel in self.kernels]
        count = Counter(plain)
        found = {entry: kernel.name for entry, kernel in zip(plain, self.kernels, strict=True) if count[entry] == 1}
        return found | {kernel.name: kernel.name for kernel in self.kernels}

    @cached_property
    def sites_of_op(self) -> Mapping[OpId, tuple[str, ...]]:
        """Site ids by op id, in site order; only ops that are members of a site have an entry."""
        sites: dict[OpId, list[str]] = {}
        for site in self.sites:
            for member in site.members:
                sites.setdefault(member.op, []).append(site.id)
        return {op: tuple(ids) for op, ids in sites.items()}

    @cached_property
    def paths_of_op(self) -> Mapping[OpId, tuple[CallPath, ...]]:
        """The calls that lead to an op, outermost first: of an op that works in sites each way once, in site order.

        An op that works in none is reached as the ops of its function are that do; one that nothing is known of has no
        entry, nor have functions, which stand for themselves.
        """
        own: dict[OpId, dict[CallPath, None]] = {}
        around: dict[Text, dict[CallPath, None]] = {}
        for site in self.sites:
            for member in site.members:
                paths = dict.fromkeys(member.paths)
                own.setdefault(member.op, {}).update(paths)
                around.setdefault(self.op_by_id[member.op].function, {}).update(paths)
        ops = [op for op in self.ops if not op.name.endswith(".func")]
        reached = {op.id: own.get(op.id) or around.get(op.function, {}) for op in ops}
        return {op: tuple(paths) for op, paths in reached.items() if paths}
