"""Running one notebook with papermill."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ipusim.errors import StudyError

_KERNEL_CONFIG = """\
import logging
c.IPKernelApp.log_level = logging.CRITICAL
logging.getLogger("tornado.general").setLevel(logging.CRITICAL)
"""
"""Newer ipykernels warn about unencrypted local sockets at every start, call an interrupt that
meets them between two cells an error, and may fail to write while they end; what fails in a cell
shows there."""


class Failure(NamedTuple):
    """What ended a notebook: the name of the exception, and where and why in a phrase."""

    error: str
    said: str


_RUNNING: set[int] = set()
"""Process numbers of the kernels that run notebooks."""


@contextmanager
def interrupts_reach_cells() -> Iterator[None]:
    """Let Ctrl-C interrupt the running cells, not the event loops that wait for them."""

    def interrupt(number: int, frame: Any) -> None:
        if not _RUNNING:
            raise KeyboardInterrupt
        while _RUNNING:
            with suppress(ProcessLookupError):
                os.kill(_RUNNING.pop(), signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _kernel_manager(folder: Path, settings: Path) -> type:
    """Return a class of kernel managers whose kernels work in a folder and are known to run.

    Their IPython has the folder `settings`, so that nothing of the user's leaks in.
    """
    # Papermill would change the working directory of this process, where other notebooks run too.
    from jupyter_client import AsyncKernelManager

    profile = settings / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(_KERNEL_CONFIG, encoding="utf-8")
    place = {"cwd": str(folder), "env": os.environ | {"IPYTHONDIR": str(settings)}}

    class Manager(AsyncKernelManager):
        own: int | None = None

        async def start_kernel(self, **options: Any) -> None:
            await super().start_kernel(**options | place)
            self.own = getattr(self.provisioner, "pid", None)
            if self.own is not None:
                _RUNNING.add(self.own)

        async def shutdown_kernel(self, *arguments: Any, **options: Any) -> None:
            _RUNNING.discard(self.own)
            await super().shutdown_kernel(*arguments, **options)

    return Manager


def run_notebook(
    source: Path, target: Path, parameters: Mapping[str, Any], *, progress: bool
) -> Failure | None:
    """Execute a notebook within `interrupts_reach_cells`; the copy stays.

    Returns why it did not finish, with the number of the failing code cell, from 1, if one is to
    blame: a KeyboardInterrupt where a person ended it.
    """
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    bar: bool | dict[str, str] = {"desc": source.stem} if progress else False
    try:
        with TemporaryDirectory(prefix="ipusim-ipython-", ignore_cleanup_errors=True) as settings:
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=bar,
                kernel_manager_class=_kernel_manager(source.parent, Path(settings)),
            )
    except papermill.PapermillExecutionError as error:
        place = f"in code cell {error.exec_count} " if error.exec_count else ""
        name, said = error.ename, error.evalue
    except (CellControlSignal, DeadKernelError) as error:
        place, name, said = "", type(error).__name__, str(error)
    except NoSuchKernel as error:
        raise StudyError(
            "The Jupyter kernel 'python3' is not installed in this environment: "
            "run 'python -m pip install ipykernel'."
        ) from error
    else:
        return None
    first_line = str(said).partition("\n")[0]
    return Failure(name, f"failed {place}({name}: {first_line})")
