"""Figures as data/studies describe them: panels of marks over the columns of tables.

A figure has a ``size`` in inches (``each`` is added for a panel's width and a line's height), its
``panels`` or one for each value of the column ``across`` or ``down``, and a ``legend``: how many
entries stand side by side, or a place in the panel. A panel has a ``title``, the axes ``x`` and
``y``, and ``marks``. A mark is named by its first key (`_MARKS`), which lists columns, expressions
of columns as `pandas.DataFrame.eval` reads them, or numbers; ``place`` counts the lines of the
panel, ``@hit`` and ``@near`` are the bands of verdicts, and a star stands for its ``column``.
``only`` selects lines by such an expression, ``of`` (of a mark or a panel) another table than the
first, ``once`` one line for each value; ``by`` draws the values of a column apart, each in its own
of the ``looks``; ``like`` names a kind of number (`charts.SERIES`). All else are options of
matplotlib, with colours of the palette.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipusim.errors import StudyError, unknown_name
from ipusim.study.book.charts import (
    OKABE_ITO,
    PARTS,
    SERIES,
    agreement,
    grouped_bars,
    log_axis,
    name_places,
    ratio_axis,
    sheet,
    stacked_bars,
    system_looks,
)
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT

Spec = Mapping[str, Any]
Tables = Mapping[str, pd.DataFrame]
_SHEET = ("last", "sharex", "sharey", "width_ratios")
_OWN = ("of", "only", "once", "by", "looks", "like")
"""Keys of a mark that are no options of matplotlib."""
_BANDS = {"hit": HIT_PERCENT, "near": NEAR_PERCENT}
"""Percentages of the rule of verdicts, as a figure names them."""


def drawn(spec: Spec, tables: Tables, looks: Spec) -> Figure:
    """Draw a figure from its tables by name; `looks` are those of its study by name."""
    main = next(iter(tables.values()))
    if main.empty:
        raise StudyError(spec.get("empty", "The table is empty: there is nothing to draw."))
    panels = list(_panels(spec, tables))
    (wide, high), (each, line) = spec["size"], spec.get("each", (0.0, 0.0))
    legend, options = spec.get("legend"), {name: spec[name] for name in _SHEET if name in spec}
    options["down" if "down" in spec else "across"] = len(panels)
    options["legend"] = 0 if isinstance(legend, str) else legend
    with sheet(wide + each * len(panels), high + line * len(main), **options) as (figure, axes):
        for axis, (panel, own) in zip(axes, panels, strict=True):
            first = next(iter(own.values()))
            for mark in panel["marks"]:
                _draw(axis, mark, own, looks, panel.get("column", ""))
            for side in "xy":
                _finish(axis, side, panel.get(side, {}), first)
            axis.set_title(_words(panel.get("title", ""), first), **panel.get("title_look", {}))
            if isinstance(legend, str):
                axis.legend(loc=legend)
            if "sharey" in spec and axis is not axes[0]:
                axis.set_ylabel("")
    return figure


def _known(what: str, name: str, named: Mapping[str, Any]) -> Any:
    if name not in named:
        raise unknown_name(f"{what} of a figure", name, [one for one in named if one])
    return named[name]


def _panels(spec: Spec, tables: Tables) -> Iterator[tuple[Spec, Tables]]:
    """Yield what stands in each panel, and the lines of the tables that it is about."""
    column, main = spec.get("across", spec.get("down")), next(iter(tables))
    values = tables[main][column].unique() if isinstance(column, str) else [None]
    for value, panel in itertools.product(values, spec.get("panels", [{}])):
        own = {}
        for name in (panel.get("of", main), *tables):
            table = tables[name]
            if value is not None and column in table:
                table = table[table[column] == value]
            own[name] = table.assign(place=np.arange(len(table)))
        yield {**spec, **panel}, own


def _draw(axis: Axes, mark: Spec, tables: Tables, looks: Spec, column: str) -> None:
    kind, listed = next(iter(mark.items()))
    _known("mark", kind, {**_MARKS, **_TOGETHER})
    wanted = [column if one == "*" else one for one in listed]
    main = next(iter(tables.values()))
    rows = _known("table", mark["of"], tables) if "of" in mark else main
    styles = _styles(mark, main, rows, looks)
    if "only" in mark:
        rows = rows[_values(rows, mark["only"]).astype(bool)]
    if "once" in mark:
        rows = rows.drop_duplicates(mark["once"]).sort_values(mark["once"])
    options = {name: value for name, value in mark.items() if name not in (kind, *_OWN)}
    options = {**SERIES.get(mark.get("like", ""), {}), **options}
    if kind in _TOGETHER:
        _TOGETHER[kind](axis, rows, *wanted, looks=styles, **options)
        return
    groups = [("", rows)]
    if "by" in mark:
        named = rows[rows[mark["by"]].isin(styles)] if styles else rows
        groups = named.groupby(mark["by"], sort=False)
    for name, own in groups:
        look = _coloured({**styles.get(name, {}), **options})
        if own.empty:
            continue
        if name or "label" in look:
            look["label"] = _words(look.get("label", str(name)), own)
        _MARKS[kind](axis, *(_values(own, one) for one in wanted), **look)


def _styles(mark: Spec, main: pd.DataFrame, rows: pd.DataFrame, looks: Spec) -> Spec:
    """Return the look of each value that a mark draws apart; those of a list are taken in turn."""
    name = mark.get("looks", "")
    if name == "systems":
        return system_looks(main[mark["by"]])
    known = _known("look", name, {"": {}, "series": SERIES, "parts": PARTS, **looks})
    if isinstance(known, list):
        known = dict(zip(rows[mark["by"]].unique(), itertools.cycle(known), strict=False))
    return {value: _coloured(look) for value, look in known.items()}


def _coloured(look: Spec) -> dict[str, Any]:
    """Return options of matplotlib, their colour by its name in the palette."""
    colour = {"color": OKABE_ITO.get(look["color"], look["color"])} if "color" in look else {}
    return {**look, **colour}


def _values(rows: pd.DataFrame, wanted: Any) -> Any:
    """Return a column, the value of an expression, or a number as it is."""
    if not isinstance(wanted, str):
        return wanted
    try:
        return rows[wanted] if wanted in rows else rows.eval(wanted, local_dict=_BANDS)
    except (pd.errors.UndefinedVariableError, SyntaxError) as error:
        raise StudyError(
            f"The figure draws {wanted!r}, but its table has the columns {', '.join(rows)}: use "
            "those."
        ) from error


def _words(text: str, rows: pd.DataFrame) -> str:
    """Fill in the number of lines, and the cells of the first."""
    return text.format(**{"rows": len(rows)} | (rows.iloc[0].to_dict() if len(rows) else {}))


def _finish(axis: Axes, side: str, spec: Spec, rows: pd.DataFrame) -> None:
    """Give an axis its scale, ticks, names of places, ends and label."""
    ticks = spec.get("ticks")
    if isinstance(ticks, str):
        ticks = sorted(rows[ticks].unique())
    if spec.get("log"):
        log_axis(axis, side, ticks or (), unit=spec.get("unit", ""))
    elif ticks is not None:
        getattr(axis, f"set_{side}ticks")(ticks)
    if "names" in spec:
        lines = (rows[at : at + 1] for at in range(len(rows)))
        name_places(axis, [_words(spec["names"], line) for line in lines], vertical=side == "y")
    axis.tick_params(axis=side, **spec.get("tick_look", {}))
    if "ends" in spec:
        ends = [np.ravel(_values(rows, end))[0] for end in spec["ends"]]
        getattr(axis, f"set_{side}lim")(*ends)
        if spec.get("ratio"):
            ratio_axis(axis, *ends)
    getattr(axis, f"set_{side}label")(spec.get("label", ""))


def _points(axis: Axes, x: Any, y: Any, **look: Any) -> None:
    axis.plot(x, y, **look | {"linestyle": "none"})


def _error_bars(axis: Axes, x: Any, y: Any, low: Any, high: Any, **look: Any) -> None:
    axis.errorbar(x, y, yerr=[y - low, high - y], **look)


def _equal(
    axis: Axes, rows: pd.DataFrame, columns: Sequence[str], looks: Spec, ends: Any, within: Any
) -> None:
    """Draw where both axes are equal, between multiples of the least and the largest number."""
    values = rows[columns].to_numpy(dtype=np.float64)
    bands = [_known("band", name, _BANDS) for name in within]
    agreement(axis, (ends[0] * np.nanmin(values), ends[1] * np.nanmax(values)), bands)


def _stack(
    axis: Axes, rows: pd.DataFrame, group: str, part: str, value: str, *, looks: Spec, total: str
) -> None:
    """Draw a bar per group of its parts, in the order of their looks, with their sum above."""
    table = rows.pivot(index=group, columns=part, values=value).fillna(0.0)
    heights = {name: table[name].to_numpy() for name in looks if name in table.columns}
    for place, whole in enumerate(stacked_bars(axis, heights, looks)):
        axis.text(place, whole, total.format(whole), ha="center", va="bottom", fontsize=8.5)
    name_places(axis, list(table.index))
    axis.margins(y=0.1)


def _groups(axis: Axes, rows: pd.DataFrame, group: str, bar: str, looks: Spec) -> None:
    grouped_bars(axis, rows, group=group, bar=bar, looks=looks)


def _notes(
    axis: Axes, rows: pd.DataFrame, x: str, y: str, text: str, *, looks: Spec, at: Any, **look: Any
) -> None:
    """Write a text beside the point of each line, `at` so many points from it."""
    for line in rows.to_dict("records"):
        place = {"xytext": at, "textcoords": "offset points"}
        axis.annotate(text.format(**line), (line[x], line[y]), **place, **look)


def _arrows(axis: Axes, rows: pd.DataFrame, x: str, y: str, end: str, looks: Spec) -> None:
    """Draw an arrow from the point of each line to the right or to the left."""
    for line in rows.to_dict("records"):
        ends = {"xy": (line[end], line[y]), "xytext": (line[x], line[y])}
        axis.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": "black"})


_MARKS: dict[str, Callable[..., object]] = {
    "line": Axes.plot,
    "points": _points,
    "step": Axes.step,
    "upright": lambda axis, x, low, high, **look: axis.plot([x, x], [low, high], **look),
    "area": Axes.fill_between,
    "error_bars": _error_bars,
    "ranges": Axes.hlines,
    "flat_bars": Axes.barh,
    "at_x": lambda axis, x, **look: axis.axvline(np.ravel(x)[0], **look),
    "at_y": lambda axis, y, **look: axis.axhline(np.ravel(y)[0], **look),
    "between_x": Axes.axvspan,
    "between_y": Axes.axhspan,
}
_TOGETHER: dict[str, Callable[..., object]] = {
    "equal": _equal,
    "stack": _stack,
    "groups": _groups,
    "notes": _notes,
    "arrows": _arrows,
}
"""Marks that are no plot of values: they draw all lines of a table at once."""
