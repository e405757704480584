"""The tour's what-if: controls that run the simulator, and a picture where there are none."""

import html
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import ipywidgets as widgets

from ipusim.api import simulate
from ipusim.errors import ConfigError, IpuSimError
from ipusim.look import OKABE_ITO
from ipusim.machine.system import load_system, system_names
from ipusim.markup import template
from ipusim.planning import FILLED
from ipusim.report import Report
from ipusim.report.advice import python, room
from ipusim.study.data.published import load_rows
from ipusim.study.specs import load_spec
from ipusim.workload import zoo
from ipusim.workload.loading import load_model
from ipusim.workload.model import Model

FALLBACK = (
    "Controls for model or ONNX file, system, mode, micro-batch, precision, chips, replicas and "
    "host: run this cell in JupyterLab to use them. Below is where they start."
)
CURVE = (1, 2, 4, 8, 16, 32, 64)
"""Micro-batches of the curve."""
_PRECISIONS = ("16.16", "16.32", "32.32")
_MOST_MICRO_BATCH = 128
_MOST_TOUR_IPUS = 16
_WIDTH, _HEIGHT, _EDGE = 560, 220, 46

Point = tuple[int, float]
"""Micro-batch and items per second."""


class Explorer:
    """Controls that show what the run they describe comes to; they start at the arguments.

    The model may be a path ending in .onnx, whose free sizes ``dims`` takes, as ``sequence=128``.
    ``answer`` shows fit, throughput and curve, or why there are none, ``line`` the same call to be
    copied, ``details`` the whole report, ``busy`` that something is being planned.
    """

    def __init__(
        self, model: str = "resnet50", system: str = "IPU-M2000", micro_batch: int = 1
    ) -> None:
        small = [name for name in system_names() if load_system(name).ipus <= _MOST_TOUR_IPUS]
        start = load_system(system).name
        # A run per letter or per pixel of movement would queue up behind the control.
        late = {"continuous_update": False}
        self.model = widgets.Combobox(
            options=list(zoo.names()), value=model, description="model", placeholder="or x.onnx",
            **late,
        )  # fmt: skip
        self.dims = widgets.Text(description="sizes", placeholder="sequence=128", **late)
        self.system = widgets.Dropdown(
            options=list(dict.fromkeys([*small, start])), value=start, description="system"
        )
        self.mode = widgets.Dropdown(options=("inference", "training"), description="mode")
        self.micro_batch = widgets.IntSlider(
            value=micro_batch, min=1, max=_MOST_MICRO_BATCH, description="micro-batch", **late
        )
        hosts = tuple(load_spec("tour")["hosts"].items())
        self.host = widgets.Dropdown(options=hosts, description="host")
        self.chips = widgets.Dropdown(options=(1,), description="chips each")
        self.replicas = widgets.Dropdown(options=(1,), description="replicas")
        self.precision = widgets.Dropdown(options=_PRECISIONS, description="precision")
        self.busy, self.answer, self.details = (widgets.HTML() for _ in range(3))
        self.line = widgets.Text(description="as Python", layout={"width": "98%"})
        report = widgets.Accordion([self.details], titles=("The whole report",))
        rows = (
            (self.model, self.dims, self.system),
            (self.mode, self.micro_batch, self.precision),
            (self.chips, self.replicas, self.host),
            (self.busy,),
        )
        self._box = widgets.VBox([*map(widgets.HBox, rows), self.answer, self.line, report])
        self._load, self._run = cache(_loaded), cache(self._simulated)
        self._holding = False
        self._offer(self.chips, 1)
        self._offer(self.replicas, 1)
        for row in rows:
            for control in row:
                if control is not self.busy:
                    control.observe(self._changed, names="value")
        self.update()

    def options(self) -> dict[str, Any]:
        """Return the options of `simulate` that the controls stand for."""
        chips, training, both = self.chips.value, self.mode.value == "training", ("host_dtype",)
        return {
            "system": self.system.value,
            "mode": self.mode.value,
            "micro_batch": self.micro_batch.value,
            "precision": self.precision.value,
            "ipus_per_replica": chips,
            "replicas": self.replicas.value,
            **{name: one for name, one in self.host.value.items() if name in both or not training},
            # Enough micro-batches that a pipeline is full most of the time.
            **({"gradient_accumulation": FILLED * chips} if training else {}),
        }

    def report(self, **changed: Any) -> Report:
        """Simulate what the controls describe, some options changed; an IpuSimError refuses it."""
        options = self.options() | changed
        return self._run(self.model.value, self.dims.value, tuple(options.items()))

    def _simulated(self, name: str, sizes: str, options: tuple[tuple[str, Any], ...]) -> Report:
        return simulate(self._load(name, sizes), **dict(options))

    def update(self) -> None:
        """Show what the present setting comes to, and then the curve it lies on."""
        self.busy.value = "<b>planning ...</b>"
        try:
            asked = {"model": self.model.value, "dims": _sizes(self.dims.value), **self.options()}
            report = self.report()
            self.line.value = python("simulate", {name: one for name, one in asked.items() if one})
            self.details.value = report._repr_html_()
            self.answer.value = _card(report)
            self.answer.value = _card(report, self.curve(), published(asked))
        except IpuSimError as error:
            self.answer.value, self.details.value = f"<p>{html.escape(str(error))}</p>", ""
            self.line.value = ""
        finally:
            self.busy.value = ""

    def curve(self) -> list[Point]:
        """Return the throughput over the micro-batch, as far as it fits."""
        points = []
        for size in sorted({*CURVE, self.micro_batch.value}):
            try:
                report = self.report(micro_batch=size)
            except IpuSimError:
                continue
            if not report.fits:
                break
            points.append((size, report.throughput.value))
        return points

    def _offer(self, control: widgets.Dropdown, each: int) -> None:
        """Let a control choose 1, 2, 4, ... of what the system holds."""
        most = load_system(self.system.value).ipus // each
        options = tuple(2**power for power in range(most.bit_length()))
        if control.options != options:
            control.options = options
            control.value = options[-1] if control is self.replicas else 1

    def _changed(self, change: dict[str, Any]) -> None:
        if self._holding:
            return
        self._holding = True  # What the lines below set is one change with this one.
        try:
            if change["owner"] is self.system:
                self._offer(self.chips, 1)
            self._offer(self.replicas, self.chips.value)
        finally:
            self._holding = False
        self.update()

    def __repr__(self) -> str:
        return FALLBACK

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        shown = self._box._repr_mimebundle_(**options)
        # Where no widget can be shown, a reader should see the picture and not a list of objects.
        picture = f"{self.answer.value}<pre>{html.escape(self.line.value)}</pre>"
        return {**shown, "text/plain": FALLBACK, "text/html": f"<p>{FALLBACK}</p>{picture}"}


def _sizes(text: str) -> dict[str, int]:
    """Return the sizes that a text such as "batch=1 sequence=128" gives."""
    pairs = [part.rpartition("=") for part in text.replace(",", " ").split()]
    if not all(name and size.isdecimal() for name, _, size in pairs):
        raise ConfigError(f"The sizes {text!r} must be such as sequence=128, apart by spaces.")
    return {name: int(size) for name, _, size in pairs}


def _loaded(name: str, sizes: str) -> Model:
    """Return a model by its name, or as its file and sizes build it."""
    return load_model(name, **({"dims": _sizes(sizes)} if sizes.strip() else {}))


def published(asked: Mapping[str, Any]) -> list[Point]:
    """Return the published throughputs of a model on so many chips, whatever else was chosen."""
    names = ("model", "system", "mode", "ipus_per_replica", "replicas")
    return [
        (row.run.micro_batch, row.value)
        for row in load_rows(metric="throughput")
        if row.run.micro_batch and row.value > 0
        if all(getattr(row.run, name) == asked[name] for name in names)
    ]


def _card(report: Report, curve: Sequence[Point] = (), points: Sequence[Point] = ()) -> str:
    """Return as HTML whether a run fits, the number, and the curve that it lies on."""
    verdict, number, more, here = report.verdict, "does not fit", "", None
    if report.fits:
        said, rate = dict(report.summary()), report.throughput.value
        verdict = f"{room(report)}."
        number = f"{rate:,.0f} items/s"
        more = f"latency {said['latency']}; {said['power']}"
        here = (report.config.micro_batch, rate)
    words = {"fits": report.fits, "verdict": verdict, "number": number, "more": more}
    drawn = _drawn(curve, points, here)
    return template("explorer.html.j2").render(**words, drawn=drawn, palette=OKABE_ITO)


def _drawn(
    curve: Sequence[Point], points: Sequence[Point], here: Point | None
) -> dict[str, Any] | None:
    """Return where all lies in the picture, in pixels: matplotlib is too slow for a slider."""
    shown = [*curve, *points]
    if len(shown) < 2:
        return None
    right, most = max(size for size, _ in shown), max(rate for _, rate in shown)

    def at(size: float, rate: float) -> tuple[float, float]:
        across = math.log2(size) / max(1.0, math.log2(right))
        down = 1 - rate / (1.08 * most)
        return _EDGE + across * (_WIDTH - 2 * _EDGE), (_HEIGHT - 30) * down + 4

    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "line": [at(*point) for point in curve],
        "dots": [at(*point) for point in points],
        "ticks": [(at(size, 0)[0], size) for size, _ in curve if size in CURVE],
        "here": here and at(*here),
        "most": most,
    }
