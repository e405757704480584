"""Running one notebook with papermill."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipusim.errors import StudyError

_KERNEL_CONFIG = "c.IPKernelApp.log_level = 40\n"
"""Newer ipykernels warn about unencrypted local sockets at every start; errors still show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a notebook did not finish.

    Attributes
    ----------
    cell : int
        Number of the failing code cell, from 1; 0 when no cell is to blame.
    error : str
        Name and first line of the exception.
    """

    cell: int
    error: str

    @property
    def interrupted(self) -> bool:
        """Whether a person ended it."""
        return self.error.startswith("KeyboardInterrupt")

    def __str__(self) -> str:
        """Return the failure as a phrase."""
        place = f"in code cell {self.cell} " if self.cell else ""
        return f"failed {place}({self.error})"


@contextmanager
def quiet_kernels() -> Iterator[None]:
    """Give kernels an IPython profile of their own, so that nothing of the user's leaks in."""
    before = os.environ.get("IPYTHONDIR")
    with tempfile.TemporaryDirectory(prefix="ipusim-ipython-") as folder:
        profile = Path(folder) / "profile_default"
        profile.mkdir()
        (profile / "ipython_kernel_config.py").write_text(_KERNEL_CONFIG, encoding="utf-8")
        os.environ["IPYTHONDIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["IPYTHONDIR"]
            else:
                os.environ["IPYTHONDIR"] = before


@contextmanager
def _interrupts_reach_the_cell() -> Iterator[type]:
    """Let Ctrl-C interrupt the running cell, not the event loop that waits for it.

    The notebook then ends like one with a failing cell, with its partial copy; a second Ctrl-C, or
    one before the kernel runs, interrupts this process as ever. Yields the class of kernel manager
    to start the kernel with; does nothing in a thread, which receives no signals.
    """
    from jupyter_client import AsyncKernelManager

    started: list[AsyncKernelManager] = []

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options: Any) -> None:
            await super().start_kernel(**options)
            started.append(self)

    def interrupt(number: int, frame: Any) -> None:
        pid = getattr(started.pop().provisioner, "pid", None) if started else None
        if pid is None:
            raise KeyboardInterrupt
        os.kill(pid, signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield Manager
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield Manager
    finally:
        signal.signal(signal.SIGINT, before)


def run_notebook(
    source: Path, target: Path, parameters: Mapping[str, Any], *, progress: bool
) -> Failure | None:
    """Execute a notebook with papermill.

    Parameters
    ----------
    source, target : pathlib.Path
        The notebook and where its executed copy goes; the copy is kept after a failure too.
    parameters : mapping of str to Any
        Values for its parameters cell.
    progress : bool
        Show a bar per cell.

    Raises
    ------
    StudyError
        If the Python kernel cannot be started at all.
    """
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    bar: bool | dict[str, str] = {"desc": source.stem} if progress else False
    try:
        with quiet_kernels(), _interrupts_reach_the_cell() as manager:
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=bar,
                cwd=str(source.parent),
                kernel_manager_class=manager,
            )
    except papermill.PapermillExecutionError as error:
        first_line = str(error.evalue).partition("\n")[0]
        return Failure(cell=error.exec_count or 0, error=f"{error.ename}: {first_line}")
    except (CellControlSignal, DeadKernelError) as error:
        return Failure(cell=0, error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    except NoSuchKernel as error:
        raise StudyError(
            "The Jupyter kernel 'python3' is not installed in this environment: "
            "run 'python -m pip install ipykernel'."
        ) from error
    return None
