"""The tour's what-if: controls that run the simulator, and a figure for where there are none."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as widgets
import pandas as pd
from matplotlib.figure import Figure

from ipusim.api import simulate
from ipusim.errors import IpuSimError
from ipusim.machine.system import load_system, system_names
from ipusim.report import Report
from ipusim.study.book.charts import lines, sheet, system_looks
from ipusim.workload import zoo

FALLBACK = (
    "Controls for model, system, micro-batch and precision: run this cell in JupyterLab to use "
    "them. The figure below shows a sweep instead."
)
_PRECISIONS = ("16.16", "16.32", "32.32")
_MOST_MICRO_BATCH = 32
_MOST_TOUR_IPUS = 16


class Explorer:
    """Controls that show the report of the run they describe.

    Parameters
    ----------
    model, system : str
        Where the controls start.
    micro_batch : int
        Where the slider starts.

    Attributes
    ----------
    model, system, micro_batch, precision : ipywidgets.Widget
        The controls.
    answer : ipywidgets.HTML
        The report, or one sentence saying why there is none.
    """

    def __init__(
        self, model: str = "resnet50", system: str = "IPU-M2000", micro_batch: int = 1
    ) -> None:
        small = [name for name in system_names() if load_system(name).ipus <= _MOST_TOUR_IPUS]
        start = load_system(system).name
        if start not in small:
            small.append(start)
        self.model = widgets.Dropdown(options=list(zoo.names()), value=model, description="model")
        self.system = widgets.Dropdown(options=small, value=start, description="system")
        self.micro_batch = widgets.IntSlider(
            value=micro_batch,
            min=1,
            max=_MOST_MICRO_BATCH,
            description="micro-batch",
            # a run per pixel of movement would queue up behind the slider
            continuous_update=False,
        )
        self.precision = widgets.Dropdown(options=_PRECISIONS, description="precision")
        self.answer = widgets.HTML()
        controls = (self.model, self.system, self.micro_batch, self.precision)
        rows = [widgets.HBox(controls[:2]), widgets.HBox(controls[2:]), self.answer]
        self._box = widgets.VBox(rows)
        for control in controls:
            control.observe(self._changed, names="value")
        self.update()

    def report(self) -> Report:
        """Simulate the run that the controls describe.

        Raises
        ------
        IpuSimError
            If that run makes no sense.
        """
        return simulate(
            self.model.value,
            system=self.system.value,
            micro_batch=self.micro_batch.value,
            precision=self.precision.value,
        )

    def update(self) -> None:
        """Show the report of the present setting."""
        try:
            self.answer.value = self.report()._repr_html_()
        except IpuSimError as error:
            self.answer.value = f"<p>{html.escape(str(error))}</p>"

    def _changed(self, _: object) -> None:
        self.update()

    def __repr__(self) -> str:
        return FALLBACK

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        shown = self._box._repr_mimebundle_(**options)
        # where no widget can be shown, a reader should see a sentence and not a list of objects
        return {**shown, "text/plain": FALLBACK}


def sweep_panels(frame: pd.DataFrame) -> Figure:
    """Draw latency and throughput of a sweep over systems and micro-batches.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.sweep` over system and micro_batch.

    Returns
    -------
    matplotlib.figure.Figure
        One line per system; runs that do not fit are left out.
    """
    panels = {
        "Latency": ("latency_ms", "ms/batch"),
        "Throughput": ("throughput_items_per_s", "items/s"),
    }
    fitting, looks = frame[frame["fits"]], system_looks(frame["system"])
    with sheet(9.6, 3.9, across=2) as (figure, axes):
        for axis, (title, (column, unit)) in zip(axes, panels.items(), strict=True):
            lines(axis, fitting, "micro_batch", column, by="system", looks=looks)
            axis.set(title=title, ylabel=unit, xlabel="micro-batch, items per IPU")
            axis.set_xticks(sorted(set(frame["micro_batch"])))
    return figure
