"""The command `ipusim`, also as `python -m ipusim`, which an interrupt ends at once."""

import os
import signal
import sys
import threading
import time

GRACE_S = 1.0
"""Kept kernels are written whole or not at all, so that the compiler may be ended anywhere."""


def _end(*_: object) -> None:
    try:
        os.write(2, b"\nipusim: interrupted.\n")
    finally:
        os._exit(130)


def _compiles() -> bool:
    """Whether a thread compiles a kernel: one call of LLVM takes up to a minute."""
    callers = list(sys._current_frames().values())
    for frame in callers:
        if frame.f_back is not None:
            callers.append(frame.f_back)
    return any(f"numba{os.sep}core" in frame.f_code.co_filename for frame in callers)


def _end_compiler(interrupts: int) -> None:
    """End what still compiles `GRACE_S` after an interrupt, which Python would answer later."""
    while os.read(interrupts, 1)[0] != signal.SIGINT:
        pass
    while True:
        time.sleep(GRACE_S)
        if _compiles():
            _end()


def run() -> int:
    """Run the command line with the arguments of the process; return its exit code."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        signal.signal(signal.SIGINT, _end)  # imports would answer with their traceback
    from ipusim.cli import main

    if hears:
        if os.name == "posix":
            interrupts, told = os.pipe()
            os.set_blocking(told, False)
            signal.set_wakeup_fd(told, warn_on_full_buffer=False)
            threading.Thread(target=_end_compiler, args=(interrupts,), daemon=True).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
