"""`with tracemap.recording(bundle)`: what the program's own code calls by `iree.runtime` is recorded and attributed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tracemap.errors import UsageInvalid
from tracemap.results.attribution import Attribution
from tracemap.results.bundle import Bundle
from tracemap.results.showing import lasting_folder
from tracemap.session.recording import attached, look_here, write_span

if TYPE_CHECKING:
    from tracemap.capture.disturbance import Look
    from tracemap.options.attribute import AttributeOptions


class Recording:
    """What is called between its beginning and its end; there is something to ask it when it has ended.

    `executions`: how many times kernels of the bundle ran; `path`: the run.

    Example:
        >>> import iree.runtime, numpy as np
        >>> with tracemap.recording("model.tracemap", "new.parquet") as recorded:
        ...     module = iree.runtime.load_vm_flatbuffer_file("model.tracemap/module.vmfb", driver="local-sync")
        ...     result = module.main(np.ones((24, 16), np.float32), np.ones((16, 16), np.float32))
        >>> recorded.path.name, recorded.executions
        ('new.parquet', 4)
    """

    def __init__(self, bundle: Bundle, output: Path | None) -> None:
        self.bundle = bundle
        self.path = output or lasting_folder() / "recording.parquet"
        self.executions = 0
        self._begin: Look | None = None

    def __enter__(self) -> Recording:
        attached()
        self._begin = look_here()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._begin is not None:
            self.executions = write_span(self.bundle, self._begin, look_here(), self.path)

    def attribute(self, options: AttributeOptions | None = None) -> Attribution:
        """Which op cost what.

        Raises:
            tracemap.errors.UsageInvalid: it has not ended yet.
            tracemap.errors.TracemapError: as `tracemap.attribute` does.

        Example:
            >>> import iree.runtime, numpy as np
            >>> with tracemap.recording("model.tracemap") as recorded:
            ...     module = iree.runtime.load_vm_flatbuffer_file("model.tracemap/module.vmfb", driver="local-sync")
            ...     result = module.main(np.ones((24, 16), np.float32), np.ones((16, 16), np.float32))
            >>> recorded.attribute().scope("h0/ffn")["cpu_ns"] > 0
            True
        """
        from tracemap.options.attribute import AttributeOptions
        from tracemap.session.attribute import attribute

        if not self.executions:
            raise UsageInvalid("the recording has not ended: ask it behind its `with` block")
        made = attribute([self.path], self.bundle, options or AttributeOptions())
        return Attribution.of(made.attribution, self.bundle, (self.path,))

    def _repr_html_(self) -> str:
        return self.attribute()._repr_html_()
