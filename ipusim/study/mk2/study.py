"""The MK2 benchmark blog: each claimed ratio beside what is predicted, tables and figure.

What stands behind a claim is in ``data/runs/claims_mk2.toml``; `ipusim.study.claims` recomputes it.
"""

import pandas as pd

from ipusim.api import simulate
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study import claims as engine
from ipusim.study.claims import Part, load_specs
from ipusim.study.data.published import load_claims
from ipusim.study.data.runs import load_run
from ipusim.study.table import MISSING
from ipusim.study.verdicts.compare import verdicts
from ipusim.study.verdicts.compare_gpu import gpu_compare
from ipusim.study.verdicts.errors import errors_of

STUDY = "mk2"
LSTM = "GB19"
"""The claim on the LSTM, of which the blog draws a curve."""
_NEAREST = ("row_id", "gpu", "framework", "precision", "batch", "published")


def compare_claims(*, frame: pd.DataFrame | None = None) -> pd.DataFrame:
    """Recompute every claim of the blog, against the number printed even if only a bound."""
    frame = verdicts(engine.study_rows(STUDY)) if frame is None else frame
    compared = engine.claims_frame(STUDY, engine.Sides(STUDY, frame=frame))
    printed = load_claims(STUDY).loc[compared["claim_id"]]
    for name in ("model", "task", "metric", "unit"):
        compared[name] = printed[name].to_numpy()
    compared["error_percent"] = errors_of(compared, against="claimed")
    compared["printed"] = compared["printed"].where(compared["claimed"].notna(), MISSING)
    return compared.drop(columns="row_id")  # the blog names its claims


def chip_arithmetic(frame: pd.DataFrame) -> pd.DataFrame:
    """Divide claimed ratios of throughput by claimed ratios of latency of the same network.

    One batch at a time, a machine of n chips has n times the throughput over latency of one chip:
    the quotient counts the chips that stand on one side of the comparison.
    """
    ratios = frame[frame["metric"].str.contains("ratio") & (frame["task"] == "inference")]
    ratios = ratios.assign(kind=ratios["metric"].str.split().str[0])
    first = ratios.drop_duplicates(["model", "kind"])
    both = first.pivot(index="model", columns="kind", values=["claimed", "predicted"]).dropna()
    claimed, predicted = both["claimed"], both["predicted"]
    shown = claimed[["throughput", "latency"]].add_suffix("_ratio").rename_axis(columns=None)
    return shown.assign(
        quotient=claimed["throughput"] / claimed["latency"],
        predicted_quotient=predicted["throughput"] / predicted["latency"],
    ).reset_index()


def implied_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Find the published GPU row, alike but for its stack, nearest to what each claim implies."""
    gpus = gpu_compare().set_index("row_id", drop=False)
    named = {
        spec.key: part.gpus[0]["row"]
        for spec in load_specs(STUDY)
        for part in spec.parts
        if part.gpus and "row" in part.gpus[0]
    }
    lines = []
    compared = frame[frame["implied_gpu_rate"].notna() & frame["key"].isin(named)]
    for claim in compared.to_dict("records"):
        same = gpus[["model", "task", "gpus"]]
        alike = gpus[(same == same.loc[named[claim["key"]]]).all(axis=1)]
        error = 100.0 * (alike["published"] / claim["implied_gpu_rate"] - 1.0)
        nearest = alike.loc[error.abs().idxmin(), list(_NEAREST)]
        line = {name: claim[name] for name in ("claim_id", "model", "implied_gpu_rate")}
        difference = {"difference_percent": error[nearest["row_id"]]}
        lines.append(line | nearest.to_dict() | difference)
    return pd.DataFrame(lines)


def sources_frame() -> pd.DataFrame:
    """Return which runs stand behind each claim, and what of that is assumed."""
    lines = []
    for spec in load_specs(STUDY):
        about = {"assumed": spec.assumed, "source": spec.source or spec.not_modelled}
        # one line per part; a claim that is not modelled has the line of its reason
        for part in spec.parts or (Part(ipu={"row": ""}),):
            # hours that the blog states itself are no run
            gpus = [gpu for gpu in part.gpus if "claim" not in gpu]
            words = " ".join(str(value) for gpu in gpus for value in gpu.values())
            lines.append({"claim": spec.key, "ipu": part.ipu["row"], "gpu": words, **about})
    return pd.DataFrame(lines)


def lstm_curve() -> pd.DataFrame:
    """Simulate the LSTM of claim GB19 at several batches (items per step of a chip), both sides."""
    (part,) = (part for spec in load_specs(STUDY) for part in spec.parts if spec.key == LSTM)
    run = load_run(part.ipu["row"])
    lines = []
    for batch in (1, 4, 16, 64):
        report = simulate(run.model, **(run.options() | {"micro_batch": batch}), as_if_it_fits=True)
        gpu = simulate_gpu(**(part.gpus[0] | {"batch": batch}))
        own = (float(report.latency), float(report.throughput))
        lines.append((run.system, batch * report.config.active_ipus, *own))
        lines.append((f"{gpu.gpu}, modelled", batch, gpu.step_s, gpu.throughput))
    frame = pd.DataFrame(lines, columns=["side", "batch", "latency_ms", "throughput"])
    frame["latency_ms"] *= 1e3
    return frame.sort_values(["side", "batch"], ignore_index=True)
