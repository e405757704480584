"""Which published value is regenerated where, with its verdict or the reason why there is none.

Every row of a table, every number of the slides' hardware tables, and every claim of the five
documents has a line. Claims that compare two machines stand in ``data/runs/claims_<study>.toml``;
``data/published/coverage.toml`` says what answers each of the others.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import pandas as pd

from ipusim.errors import DataError
from ipusim.files import data_dir, read
from ipusim.machine import load_system
from ipusim.study.argonne.machines import machine_frame
from ipusim.study.claims import claims_frame
from ipusim.study.data.published import claiming, load_claims, rows_by_id
from ipusim.study.specs import load_specs
from ipusim.study.verdicts.compare import NOT_MODELLED
from ipusim.study.verdicts.errors import error_percent, verdict_of
from ipusim.workload import zoo

FILE = "published/coverage.toml"
COLUMNS = ("study", "row_id", "kind", "what", "printed", "unit", "where", "answer", "verdict",
           "note")  # fmt: skip
"""``where`` is the notebook, ``answer`` how a value is answered, ``verdict`` hit, near, miss or
empty, ``note`` what was found or why nothing is tested."""
PREDICTED, DERIVED, RESTATED, TAKEN_OVER, OPEN = (
    "predicted",
    "derived",
    "restates a row",
    "taken over",
    "not tested",
)
"""How a value is answered: simulated; from the machine model or the network alone; by the row that
it repeats; put into the model, so no test; not at all, with the reason."""
_WHAT = ("model_or_subject", "model", "subject", "task", "metric", "attribute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What answers a claim that compares no two machines (``coverage.toml``)."""

    claim_id: str
    row: str = ""
    derived: str = ""
    network: str = ""
    attribute: str = ""
    scale: float = 1.0
    taken_over: bool = False
    audit: str = ""
    reason: str = ""


def load_answers(study: str) -> dict[str, Answer]:
    """Return the answers to the claims of a study that are no comparisons, by claim."""
    return {answer.claim_id: answer for answer in read(Answer, FILE, table=study)}


def _of_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows = rows_by_id()
    lines = frame[["study", "row_id", "unit", "verdict", "note"]].assign(
        kind=frame["table"],
        what=frame["label"] + ", " + frame["metric"].str.replace("_", " "),
        printed=[rows[row_id].printed for row_id in frame["row_id"]],
        answer=frame["status"].map({NOT_MODELLED: OPEN}).fillna(PREDICTED),
    )
    return lines.to_dict("records")


def _of_hardware() -> list[dict[str, Any]]:
    frame = machine_frame()
    taken = frame["note"].str.contains("taken over")
    derived = frame["verdict"].ne("").map({True: DERIVED, False: OPEN})
    lines = frame[["row_id", "unit", "note"]].assign(
        study="argonne",
        kind="hardware",
        what=frame["component"] + ", " + frame["attribute"],
        printed=frame["published"],
        answer=derived.mask(taken, TAKEN_OVER),
        verdict=frame["verdict"].mask(taken, ""),
    )
    return lines.to_dict("records")


def _answered(answer: Answer, printed: str, known: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return how a claim is answered, its verdict and a note."""
    if answer.row:
        line = known[answer.row]
        return {"answer": RESTATED, "verdict": line["verdict"], "note": answer.row}
    if answer.taken_over:
        return {"answer": TAKEN_OVER, "verdict": "", "note": "put into the model, so no test"}
    if answer.attribute:
        # what the machine model, or a network of the zoo, says
        name, network = answer.derived, answer.network
        subject = load_system(name) if name else zoo.load(network).graph(1)
        value = answer.scale * float(attrgetter(answer.attribute)(subject))
        error = error_percent(value, float(printed))
        note = f"{value:,.4g}, {error:+.1f} %" if math.isfinite(error) else f"{value:,.4g}"
        return {"answer": DERIVED, "verdict": verdict_of(value, float(printed)), "note": note}
    note = f"{answer.reason} ({answer.audit})" if answer.audit else answer.reason
    return {"answer": OPEN, "verdict": "", "note": note}


def _compared(study: str) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of the claims that compare, by claim; a study may have its own way."""
    if not (data_dir() / "runs" / f"claims_{study}.toml").exists():
        return {}
    room = f"ipusim.study.{study}"
    own = import_module(f"{room}.study") if find_spec(room) else None
    lines = own.compare_claims() if hasattr(own, "compare_claims") else claims_frame(study)
    return {key: part.to_dict("records") for key, part in lines.groupby("claim_id", sort=False)}


def _best(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Say what several machines that may be meant, or several networks, come to."""
    # The verdict is the first there is: the file lists the likeliest machine first, and of several
    # gains only the largest is judged. The note has all.
    first = lines[0]
    if first["status"] == NOT_MODELLED:
        return {"answer": OPEN, "verdict": "", "note": first["note"]}
    said = [
        f"{line['predicted']:.3g}" + (f" ({line['gpu_side']})" if line["gpu_side"] else "")
        for line in lines
    ]
    note = "; ".join(filter(None, ("predicted " + ", ".join(said), first["note"])))
    verdict = next((line["verdict"] for line in lines if line["verdict"]), "")
    return {"answer": PREDICTED, "verdict": verdict, "note": note}


def _of_claims(study: str, known: dict[str, Any]) -> list[dict]:
    answers, compared = load_answers(study), _compared(study)
    lines = []
    for claim in load_claims(study).to_dict("records"):
        claim_id = claim["claim_id"]
        if claim_id in compared:
            answered = _best(compared[claim_id])
        elif claim_id in answers:
            answered = _answered(answers[claim_id], claim["value"], known)
        else:
            raise DataError(
                f"The claim {claim_id!r} of {study} has neither a comparison nor an answer in "
                f"{FILE}: add one."
            )
        words = [claim[name] for name in _WHAT if claim.get(name)]
        lines.append(
            {
                "study": study,
                "row_id": f"{study}.claims.{claim_id}",
                "kind": "claim",
                "what": ", ".join(words),
                "printed": claim["value"],
                "unit": claim.get("unit", ""),
                **answered,
            }
        )
    return lines


def coverage(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every published value with where it is regenerated and its verdict or a reason.

    `frame` are verdicts on all rows. A claim that is answered nowhere is a DataError.
    """
    lines = _of_rows(frame)
    known = {line["row_id"]: line for line in lines}
    lines += _of_hardware()
    notebooks = {study: spec["notebook"] for study, spec in load_specs().items()}
    for study in sorted(claiming(), key=notebooks.get):
        lines += _of_claims(study, known)
    found = pd.DataFrame(lines)
    return found.assign(where=found["study"].map(notebooks))[list(COLUMNS)]
