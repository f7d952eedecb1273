"""`tracemap lsp`: a language server that shows costs at the lines of models and Python files in editors."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import unquote

import click

from tracemap._version import __version__
from tracemap.commands.framework import options_command
from tracemap.commands.workspace import BundleSearch, DocumentCosts, OpenDocument
from tracemap.core.errors import ToolMissing, UsageInvalid
from tracemap.core.sanitize import without_controls
from tracemap.options.reports import LspOptions
from tracemap.options.results import AttributeOptions

if TYPE_CHECKING:
    from lsprotocol import types
    from pygls.lsp.server import LanguageServer
    from pygls.workspace import TextDocument

    from tracemap.reports.editor import BundleCosts, LineCosts

_DETAILS: Final = "tracemap.details"
"""The command of a lens."""
_POLL_S: Final = 2.0
"""Time between two looks at known bundles, if the editor does not watch files."""
_SLOW_POLL_S: Final = 30.0
"""The same if the editor watches files, which may fail without a message."""
_SEARCH_EVERY: Final = 5
"""Looks at known bundles for each search for new ones."""
_GARBAGE_COLLECTION: Final = (700, 10, 10)
"""Python's own thresholds."""
_NICENESS: Final = 10
"""Lower priority: programs that are being measured come first."""
_OLDER: Final = "measured on an older version"


def editor_costs(path: Path) -> BundleCosts:
    """The costs of a bundle's newest run at the lines of its sources.

    Raises:
        UsageInvalid: the bundle has no run.
        TracemapError: see `map.bundle.load` and `commands.runs.join_runs`.
    """
    from tracemap.commands.runs import TIMED, join_runs, newest_runs, with_advice
    from tracemap.core.toolchain import no_progress
    from tracemap.map.bundle import load
    from tracemap.reports.editor import bundle_costs

    bundle = load(path)
    runs = newest_runs(bundle)
    if not runs:
        raise UsageInvalid(f"{path}: this bundle has no run; record one with `tracemap record {path}`")
    attributed = with_advice(join_runs(runs, bundle, AttributeOptions(), no_progress, TIMED), runs)
    return bundle_costs(attributed.costed, str(path), [run.name for run in runs])


# ---- texts
#
# Names of ops, kernels and files come from the model. Editors render pop-up windows as Markdown, so they are escaped.


def _lens_text(found: DocumentCosts, line: LineCosts, *, names_bundle: bool) -> str:
    parts = [line.lens, *([found.bundle.stem] if names_bundle else []), *([_OLDER] if found.is_older else [])]
    return without_controls(" · ".join(parts))


def _sentences(found: DocumentCosts, line: LineCosts) -> list[str]:
    return [*([f"{_OLDER} of this file"] if found.is_older else []), *line.details]


def _hover_text(costs: Sequence[tuple[DocumentCosts, LineCosts]], *, is_markdown: bool) -> str:
    from tracemap.reports.escaping import for_markdown

    escape = for_markdown if is_markdown else without_controls
    blocks = []
    for found, line in costs:
        title = escape(f"tracemap {found.bundle.name}")
        rows = [f"- {escape(sentence)}" for sentence in _sentences(found, line)]
        blocks.append("\n".join([f"**{title}**\n" if is_markdown else title, *rows]))
    return "\n\n".join(blocks)


# ---- server


class _ServerState:
    """State of the server: bundles, and the costs at the lines of open documents."""

    def __init__(self, server: LanguageServer) -> None:
        self.server = server
        self.search = BundleSearch()
        self.generation = 0
        """Grows when costs change."""
        self.looked = asyncio.Event()
        """The first look for bundles of the open documents has ended."""
        self.wake = asyncio.Event()
        """Something may have changed."""
        self.task: asyncio.Task[None] | None = None
        self._known: dict[str, tuple[object, Sequence[DocumentCosts]]] = {}

    # -- bundles

    async def watch(self) -> None:
        """Look for bundles and new runs, until cancelled."""
        period_s = _SLOW_POLL_S if await self._register() else _POLL_S
        looks = 0
        try:
            while True:
                is_woken = self.wake.is_set()
                self.wake.clear()
                try:
                    await self._look(searches=is_woken or looks % _SEARCH_EVERY == 0)
                except Exception as error:  # a defect must not end the server
                    self._log(f"looking for bundles failed: {error}")
                looks += 1
                self.looked.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), period_s)
        finally:
            self.search.stop()

    async def _look(self, *, searches: bool) -> None:
        documents = [_document(document) for document in self.server.workspace.text_documents.values()]
        if documents and searches:
            await asyncio.to_thread(self.search.search, self._folders())
        while documents and (changed := await asyncio.to_thread(self.search.next_change, documents)) is not None:
            if changed.problem:
                self._log(f"{changed.path}: has no costs: {changed.problem}")
            self.generation += 1
            if self._can_refresh:
                self.server.workspace_code_lens_refresh(None)

    def _folders(self) -> list[Path]:
        from pygls.uris import to_fs_path

        workspace = self.server.workspace
        paths = [to_fs_path(uri) for uri in workspace.folders] or [workspace.root_path]
        return [Path(path) for path in paths if path]

    @property
    def _can_refresh(self) -> bool:
        workspace = self.server.client_capabilities.workspace
        return bool(workspace and workspace.code_lens and workspace.code_lens.refresh_support)

    async def _register(self) -> bool:
        """Ask the editor to report changed bundles; returns whether it does."""
        from lsprotocol import types

        workspace = self.server.client_capabilities.workspace
        watched = workspace.did_change_watched_files if workspace else None
        if not (watched and watched.dynamic_registration):
            return False
        patterns = ("**/*.tracemap/map.json", "**/*.tracemap/runs/*")
        watchers = [types.FileSystemWatcher(glob_pattern=pattern) for pattern in patterns]
        options = types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers)
        registration = types.Registration("tracemap-bundles", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
        try:
            await self.server.client_register_capability_async(types.RegistrationParams([registration]))
        except Exception as error:
            self._log(f"the editor does not watch files: {error}")
            return False
        return True

    def _log(self, message: str) -> None:
        from lsprotocol import types

        self.server.window_log_message(types.LogMessageParams(types.MessageType.Info, without_controls(message)))

    # -- documents

    async def of_document(self, uri: str) -> Sequence[DocumentCosts]:
        """The costs at the lines of a document."""
        if not self._can_refresh:
            await self.looked.wait()
        document = self.server.workspace.text_documents.get(unquote(uri))
        if document is None:  # the editor did not open it
            return []
        key = (document.version, self.generation)
        known = self._known.get(uri)
        if known is None or known[0] != key:
            found = await asyncio.to_thread(self.search.costs_at, _document(document))
            known = self._known[uri] = key, found
        return known[1]

    def forget(self, uri: str) -> None:
        """Forget a closed document."""
        self._known.pop(uri, None)

    async def at_line(self, uri: str, line: int) -> list[tuple[DocumentCosts, LineCosts]]:
        """The costs at a line, from 0."""
        documents = await self.of_document(uri)
        return [(found, found.lines[line + 1]) for found in documents if line + 1 in found.lines]


def _document(document: TextDocument) -> OpenDocument:
    return OpenDocument(document.filename or "", document.source)


def make_server() -> LanguageServer:
    """The language server.

    Raises:
        ToolMissing: the package pygls is not installed.
    """
    try:
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer
    except ImportError as error:
        raise ToolMissing(
            "the language server needs the package pygls; install it with: pip install 'tracemap[lsp]'"
        ) from error

    server = LanguageServer("tracemap", __version__)
    costs = _ServerState(server)

    @server.feature(types.INITIALIZED)
    def initialized(_: types.InitializedParams) -> None:
        costs.task = asyncio.get_running_loop().create_task(costs.watch())

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(_: types.DidOpenTextDocumentParams) -> None:
        costs.looked.clear()
        costs.wake.set()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        costs.forget(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(_: types.DidChangeWatchedFilesParams) -> None:
        costs.wake.set()

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders_changed(_: types.DidChangeWorkspaceFoldersParams) -> None:
        costs.wake.set()

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    async def code_lens(params: types.CodeLensParams) -> list[types.CodeLens]:
        uri = params.text_document.uri
        documents = await costs.of_document(uri)
        lenses = []
        for found in documents:
            for number, line in sorted(found.lines.items()):
                if line.lens:
                    title = _lens_text(found, line, names_bundle=len(documents) > 1)
                    start = types.Position(number - 1, 0)
                    command = types.Command(title, _DETAILS, arguments=[uri, number - 1])
                    lenses.append(types.CodeLens(types.Range(start, start), command))
        return lenses

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        at_line = await costs.at_line(params.text_document.uri, params.position.line)
        if not at_line:
            return None
        about = server.client_capabilities.text_document
        formats = (about.hover.content_format if about and about.hover else None) or []
        kind = types.MarkupKind.PlainText if types.MarkupKind.PlainText in formats[:1] else types.MarkupKind.Markdown
        text = _hover_text(at_line, is_markdown=kind is types.MarkupKind.Markdown)
        return types.Hover(types.MarkupContent(kind, text))

    @server.command(_DETAILS)
    async def details(*arguments: Any) -> None:  # noqa: ANN401 - an editor may send anything
        uri, line = [*arguments, None, None][:2]
        at_line = await costs.at_line(uri, line) if isinstance(uri, str) and isinstance(line, int) else []
        text = _hover_text(at_line, is_markdown=False) or "tracemap: no costs on this line"
        server.window_show_message(types.ShowMessageParams(types.MessageType.Info, text))

    return server


def _protocol_streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for the protocol alone: whatever prints, also in libraries, goes to standard error."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    sys.stdout.flush()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return stdin, stdout


@options_command("lsp", LspOptions)
def command(options: LspOptions) -> None:
    """Serve costs to an editor: a text above each expensive line of `.mlir` and `.py` files, and details on hover.

    The editor starts this program and talks to it over standard input and output (Language Server Protocol). The
    costs are those of the newest run of each bundle (`*.tracemap`) below the editor's folders. They follow new runs,
    and move with the lines of an edited file. See docs/editors.md for Neovim and VS Code.

    \b
    Example:
      tracemap lsp
      tracemap lsp --print model.tracemap
    """
    if options.bundle is not None:
        from tracemap.core.codec import pretty_json

        click.echo(pretty_json(editor_costs(options.bundle)), nl=False)
        return
    if os.isatty(0):
        raise UsageInvalid(
            "an editor starts this command and talks to it over standard input (docs/editors.md); "
            "to see the costs here, use --print BUNDLE"
        )
    server = make_server()
    os.nice(_NICENESS)
    gc.set_threshold(*_GARBAGE_COLLECTION)  # other commands end soon, and collect no garbage
    stdin, stdout = _protocol_streams()
    server.start_io(stdin, stdout)
