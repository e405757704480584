"""Running the studies into an output folder, so that each is there whole or not at all."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

import ipusim
from ipusim import files
from ipusim.drawing import drawn
from ipusim.errors import IpuSimError, StudyError
from ipusim.files import held, write_bytes, write_text
from ipusim.kernel_cache import files_digest, source_digest
from ipusim.study.book.catalogue import (
    OUTPUT_PARAMETER,
    Study,
    declared,
    list_studies,
    parameter_values,
    select_studies,
)
from ipusim.study.book.execute import interrupts_reach_cells, run_notebook
from ipusim.study.book.index import Card, State, index_html
from ipusim.study.book.notebook import cleaned, notebook_text, read_notebook
from ipusim.study.book.outputs import frame_csv, save_figure
from ipusim.study.book.rows import coverage_html, rows_html
from ipusim.study.book.site import COVERAGE, ROWS, START, notebook_page, search_script
from ipusim.study.coverage import coverage
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.fidelity.ledger import errors_by_family
from ipusim.study.specs import load_specs
from ipusim.study.verdicts.compare import PREDICTED, verdicts
from ipusim.study.verdicts.summary import Verdict
from ipusim.workers import available_cores

STATE_FOLDER = ".ipusim"
OVERVIEW_FIGURE = "errors_by_family"
_FOLDERS = ("notebooks", "tables", "figures", STATE_FOLDER)
_RESULT_FOLDERS = ("tables", "figures")
_DATA_SUFFIXES = (".csv", ".toml", ".json")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tree_digest() -> str:
    """Return a digest of the package's source and of the data it reads."""
    return files_digest(files.data_dir(), ("",), _DATA_SUFFIXES, source_digest(("",)))


def study_key(study: Study, parameters: Mapping[str, Any], tree: str) -> str:
    """Return the digest of source, parameters, package and data by which a study must run anew."""
    cells = read_notebook(study.path)["cells"]
    sources = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
    told = [sources, dict(parameters), ipusim.__version__, tree]
    return _digest(json.dumps(told, sort_keys=True).encode())


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Make the output folder and hold it until the end; a StudyError where that cannot be."""
    with ExitStack() as stack:
        try:
            for name in _FOLDERS:
                (out / name).mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(out / STATE_FOLDER))
        except BlockingIOError:
            raise StudyError(
                f"Another run is writing to the output folder {out}: wait for it to end or choose "
                "another folder with --out."
            ) from None
        except OSError as error:
            raise StudyError(
                f"The output folder {error.filename} cannot be written to ({error.strerror}): "
                "choose another with --out."
            ) from error
        yield


def _state_path(out: Path, name: str) -> Path:
    return out / STATE_FOLDER / f"{name}.json"


def load_state(out: Path, name: str, *, anew: bool = False) -> State:
    """Read what is known of a study's outputs; a damaged record is refused, or dropped `anew`."""
    path = _state_path(out, name)
    if not path.exists():
        return State(name=name)
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        if anew:
            path.unlink()
            return State(name=name)
        raise StudyError(
            f"The output folder {out} is damaged ({path.name} in {STATE_FOLDER} is not a record of "
            "a study): run again without --resume or delete the folder."
        ) from error


def _is_current(state: State, key: str, out: Path) -> bool:
    """Return whether a study's outputs are those that running it again would give."""
    if state.status != "done" or state.key != key:
        return False
    return all(
        (out / name).is_file() and _digest((out / name).read_bytes()) == digest
        for name, digest in state.files.items()
    )


def _publish(stage: Path, out: Path) -> dict[str, str]:
    """Move staged tables and figures to their place; return their digests."""
    files = {}
    for folder in _RESULT_FOLDERS:
        for path in sorted((stage / folder).glob("*")):
            content = path.read_bytes()
            name = f"{folder}/{path.name}"
            write_bytes(out / name, content)
            files[name] = _digest(content)
    return files


def _run_study(
    study: Study,
    key: str,
    parameters: Mapping[str, Any],
    out: Path,
    studies: Sequence[Study],
    progress: bool,
) -> State:
    """Run one study: its files appear in `out` only when all of its cells have run."""
    stage = out / STATE_FOLDER / f"stage-{study.name}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    values = dict(parameters)
    if OUTPUT_PARAMETER in declared(study.path):
        values[OUTPUT_PARAMETER] = str(stage)
    executed = stage / f"{study.name}.ipynb"
    failure = run_notebook(study.path, executed, values, progress=progress)
    # the notebook was told to write into the stage; a reader sees where the files are from it
    content = executed.read_text(encoding="utf-8").replace(json.dumps(str(stage))[1:-1], "..")
    partial = out / "notebooks" / f"{study.name}.partial.ipynb"
    state = State(name=study.name, key=key, notebook=f"notebooks/{study.name}.ipynb")
    if failure:
        write_text(partial, content)
        shutil.rmtree(stage)
        if failure.error == "KeyboardInterrupt":
            raise KeyboardInterrupt
        shown = f"notebooks/{partial.name}"
        return replace(state, status="failed", message=failure.said, notebook=shown)
    files = _publish(stage, out)
    shutil.rmtree(stage)
    partial.unlink(missing_ok=True)
    notebook = out / state.notebook
    write_text(notebook, notebook_text(cleaned(json.loads(content))))
    page = write_text(
        notebook.with_suffix(".html"), notebook_page(notebook, study, studies, tuple(files))
    )
    for path in (notebook, page):
        files[path.relative_to(out).as_posix()] = _digest(path.read_bytes())
    return replace(state, status="done", files=files)


def _judged(shown: Sequence[Study]) -> tuple[PublishedRow, ...]:
    """Return the rows that studies are about; each once."""
    about_all = {spec["notebook"] for spec in load_specs().values() if spec.get("judges_all_rows")}
    if any(study.name in about_all for study in shown):
        return load_rows()
    wanted = {study.rows for study in shown}
    return tuple(row for row in load_rows() if row.study in wanted)


def _write_verdicts(out: Path, studies: Sequence[Study], frame: pd.DataFrame) -> None:
    """Write the table of judged rows and their page, and the coverage if all are there."""
    write_text(out / "verdicts.csv", frame_csv(frame))
    write_text(out / ROWS, rows_html(frame, studies))
    if (frame["status"] == PREDICTED).any():
        spec = load_specs()["fidelity"]["figures"]["fidelity_families"]
        tables = {OVERVIEW_FIGURE: errors_by_family(frame)}
        save_figure(drawn(spec, tables, {}), OVERVIEW_FIGURE, out)
    if len(frame) == len(load_rows()):
        covered = coverage(frame)
        write_text(out / "coverage.csv", frame_csv(covered))
        write_text(out / COVERAGE, coverage_html(covered, studies))


def _saved_verdict(out: Path, files: Iterable[str]) -> Verdict | None:
    """Return what a study's page came to, from the table it saved."""
    for name in files:
        if name.endswith("_verdict.csv"):
            (line,) = pd.read_csv(out / name, keep_default_na=False).to_dict("records")
            sizes = {key: float(line[key] or "nan") for key in line if key.endswith("_percent")}
            return Verdict(**(line | sizes))
    return None


def _write_index(out: Path, states: Mapping[Study, State], frame: pd.DataFrame | None) -> None:
    cards = [
        Card(study, state, _saved_verdict(out, state.files)) for study, state in states.items()
    ]
    pages = [(out / "notebooks" / f"{study.name}.ipynb", study) for study in states]
    write_text(out / "search.js", search_script([page for page in pages if page[0].exists()]))
    overview = f"figures/{OVERVIEW_FIGURE}.svg"
    shown = overview if frame is not None and (out / overview).exists() else ""
    write_text(out / START, index_html(cards, frame, overview=shown))


def reproduce(
    names: Sequence[str],
    *,
    out: Path,
    given: Mapping[str, str] | None = None,
    resume: bool = False,
    progress: bool = False,
    tell: Callable[[State], object] = lambda result: None,
) -> tuple[State, ...]:
    """Run studies, by default all, and collect everything in the folder `out`.

    It receives ``notebooks/``, ``tables/``, ``figures/``, ``verdicts.csv`` and ``index.html``.
    `given` are notebook parameters as text, which every chosen study must know; `resume` skips
    studies whose outputs are already those that running them would give; `tell` is given each
    result as soon as it is there. There is one per study, then one named ``"verdicts"`` if the
    verdicts could not be computed; a study that fails does not stop the others.

    An UnknownNameError or ConfigError refuses a study or parameter before anything is written, a
    StudyError an output folder that cannot be used.
    """
    values = {study: parameter_values(study, given or {}) for study in select_studies(names)}
    try:
        out = out.resolve(strict=out.is_symlink())
    except (OSError, RuntimeError) as error:  # a loop is a RuntimeError before Python 3.13
        raise StudyError(
            f"The output folder {out} is a link that leads nowhere: choose another with --out."
        ) from error
    with _held(out):
        return _run_all(values, out, resume, progress, tell)


def _side_by_side(
    run: Callable[[Study], tuple[Study, State]], studies: Sequence[Study]
) -> Iterator[tuple[Study, State]]:
    """Run notebooks, as many at a time as there are cores; the later take longest, begin first."""
    if len(studies) < 2 or available_cores() < 2:
        yield from map(run, studies)
        return
    with ThreadPoolExecutor(available_cores()) as pool:
        running = [pool.submit(run, study) for study in reversed(studies)]
        try:
            yield from (future.result() for future in as_completed(running))
        finally:
            pool.shutdown(cancel_futures=True)


def _run_all(
    values: Mapping[Study, Mapping[str, Any]],
    out: Path,
    resume: bool,
    progress: bool,
    tell: Callable[[State], object],
) -> tuple[State, ...]:
    """Run the chosen studies, with their parameters, into a folder that is held."""
    states = {study: load_state(out, study.name, anew=not resume) for study in list_studies()}
    all_studies = tuple(states)
    written = out / STATE_FOLDER / "pages"
    tree = _tree_digest()
    keys = {study: study_key(study, given, tree) for study, given in values.items()}
    found, left = {}, []
    for study in values:
        if resume and _is_current(states[study], keys[study], out):
            found[study] = replace(states[study], status="up to date")
            tell(found[study])
        else:
            left.append(study)

    def run(study: Study) -> tuple[Study, State]:
        start = time.monotonic()
        _state_path(out, study.name).unlink(missing_ok=True)
        written.unlink(missing_ok=True)
        bars = progress and len(left) == 1
        state = _run_study(study, keys[study], values[study], out, all_studies, bars)
        write_text(_state_path(out, study.name), json.dumps(asdict(state), indent=1) + "\n")
        cells = sum(cell["cell_type"] == "code" for cell in read_notebook(study.path)["cells"])
        return study, replace(state, cells=cells, seconds=time.monotonic() - start)

    if not left and written.exists():
        return tuple(found.values())
    frame = failure = None
    try:
        # first of all: the notebooks that run side by side find these predictions on disk
        rows = _judged([study for study, state in states.items() if study in left or state.key])
        if rows:
            frame = verdicts(rows, jobs=available_cores())
    except IpuSimError as error:
        failure = error
    bar = {"desc": "studies", "unit": "study", "total": len(left), "disable": not progress}
    with interrupts_reach_cells():
        for study, result in tqdm(_side_by_side(run, left), **bar):
            found[study] = states[study] = result
            tell(result)
    results = [found[study] for study in values]
    written.unlink(missing_ok=True)
    try:
        if frame is not None:
            _write_verdicts(out, all_studies, frame)
    except IpuSimError as error:
        failure = error
    if failure:
        said = {"status": "failed", "message": str(failure), "notebook": "verdicts.csv"}
        results.append(State(name="verdicts", **said))
        tell(results[-1])
    _write_index(out, states, frame)
    write_text(written, "")  # the pages belong to the studies' outputs: a resumed run may keep them
    return tuple(results)
