"""Worker processes: tasks come home, errors come back, and nothing outlives its parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipusim.errors import ConfigError
from ipusim.workers import Workers, deaf_to_interrupts

CHILD = """
import os
from test_workers import who
from ipusim.workers import Workers

if __name__ == "__main__":
    workers = Workers(1)
    print(*dict(workers.each(who, {"a": 0})).values(), flush=True)
    os.kill(os.getpid(), 9)
"""


def who(_):
    return os.getpid()


def refuse(_):
    raise ConfigError("No.")


def test_tasks_go_where_they_went_before():
    workers = Workers(2)
    first = dict(workers.each(who, {"a": 0, "b": 0}))
    assert first["a"] != first["b"]
    assert dict(workers.each(who, {"b": 0, "a": 0})) == first


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows cannot block signals")
def test_a_process_hears_no_interrupt_even_before_it_runs():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    with deaf_to_interrupts():
        process.start()
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_who_has_nothing_to_do_takes_what_waits():
    workers = Workers(2)
    (first,) = dict(workers.each(who, {"a": 0})).values()
    (second,) = dict(workers.each(who, {"b": 0})).values()
    assert first == second
    both = dict(workers.each(who, {"a": 0, "b": 0}))
    assert both["a"] == first != both["b"]
    # It stays there.
    assert dict(workers.each(who, {"b": 0, "a": 0})) == both


def test_idle_workers_have_ended_when_nobody_needs_them():
    (worker,) = dict(Workers(1).each(who, {"a": 0})).values()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_busy_workers_are_not_waited_for():
    begun = time.monotonic()
    results = Workers(2).each(time.sleep, {"long": 20, "short": 0})
    assert next(results) == ("short", None)
    results.close()
    assert time.monotonic() - begun < 15


def test_errors_come_back():
    with pytest.raises(ConfigError, match="No."):
        list(Workers(1).each(refuse, {"a": None}))


def dies_once(path):
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def dies(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_task_of_a_process_that_dies_is_done_by_another(tmp_path):
    tasks = {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert dict(Workers(2).each(dies_once, tasks)) == {"a": "done", "b": "done"}
    with pytest.raises(ConfigError, match="lack of memory"):
        list(Workers(1).each(dies, {"a": None}))


def test_an_interrupt_is_the_parents():
    # A process that ignores interrupts, as in the background of a shell, hands that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        workers = Workers(1)
        (worker,) = dict(workers.each(who, {"a": 0})).values()
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(worker, signal.SIGINT)
    time.sleep(1.0)
    assert dict(workers.each(who, {"b": 0})) == {"b": worker}


def test_a_killed_parent_leaves_no_worker(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = int(done.stdout)
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there")


def test_a_script_from_standard_input_has_workers():
    script = "from ipusim.workers import Workers\nprint(*Workers(2).each(abs, {'a': -1}))\n"
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("('a', 1)\n", "")
