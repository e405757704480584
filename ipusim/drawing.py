"""Figures as data describe them: panels of marks over the columns of tables.

A figure has a ``size`` in inches (``each`` is added for a panel's width and a line's height), its
``panels`` or one for each value of the column ``across`` or ``down``, in so many ``columns``, and a
``legend``: how many entries stand side by side below all panels (0 for none; those whose labels
begin as ``last`` says stand behind all others), or a place in the panel (`_legend`); a ``heading``
stands above all, ``places`` make drawings without axes of the panels. A panel has a ``title``, the
axes ``x`` and ``y`` (``minor`` names the small ticks of one in ``log``), and ``marks``. A mark is
named by its first key (`_MARKS`), which lists columns, expressions of columns as
`pandas.DataFrame.eval` reads them, numbers, or texts with columns in braces; ``place`` counts the
lines of the panel, ``@hit`` and ``@near`` are the bands of verdicts, and a star stands for its
``column``; what has no number is not drawn. ``only`` selects lines by such an expression, ``sort``
orders them and ``with`` adds columns (of a mark, or of the first table of the figure or panel),
``of`` (of a mark, a panel or an axis) another table than the first, ``once`` one line for each
value; ``by`` draws the values of a column apart, each in its own of the ``looks``, and those of
``apart`` again within each; ``like`` names a kind of number (data/looks.toml). All else are options
of matplotlib, with colours of the palette.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

from ipusim.errors import StudyError, unknown_name
from ipusim.files import TEMPLATES
from ipusim.look import OKABE_ITO, coloured, shared_looks
from ipusim.machine.system import load_system
from ipusim.view import NAMED, values, view, words

Spec = Mapping[str, Any]
Tables = Mapping[str, pd.DataFrame]
_GRID = ("sharex", "sharey", "width_ratios", "height_ratios")
_OWN = ("of", "only", "sort", "with", "once", "by", "apart", "looks", "like")
"""Keys of a mark that are no options of matplotlib."""
_INK = "#22262B"
"""Of text and edges in drawings."""


@mpl.rc_context()
def drawn(spec: Spec, tables: Tables, looks: Spec) -> Figure:
    """Draw a figure from its tables by name; `looks` are those of its study by name.

    Whatever style the caller has set is neither used nor changed.
    """
    mpl.rcdefaults()
    mpl.rc_file(TEMPLATES / "figures.mplstyle", use_default_template=False)
    name, main = next(iter(tables.items()))
    main = main if main.empty else view(main, spec)
    tables = {**tables, name: main}
    if main.empty:
        raise StudyError(spec.get("empty", "The table is empty: there is nothing to draw."))
    panels = list(_panels(spec, tables))
    wide, high = (_number(main, size) for size in spec["size"])
    each, line = spec.get("each", (0.0, 0.0))
    sides = (wide + each * len(panels), high + line * len(main))
    places, legend = spec.get("places", ()), spec.get("legend")
    figure = Figure(figsize=sides, layout="none" if places else None)
    across = spec.get("columns", 1 if "down" in spec else len(panels))
    if places:
        axes = [figure.add_axes(place) for place in places]
    else:
        grid = {name: spec[name] for name in _GRID if name in spec}
        axes = figure.subplots(-(-len(panels) // across), across, squeeze=False, **grid).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (panel, own) in zip(axes, panels, strict=False):
        first = next(iter(own.values()))
        if places:
            axis.axis("off")
        for mark in panel["marks"]:
            _draw(axis, mark, own, looks, panel.get("column", ""))
        for side in "xy":
            _finish(axis, side, panel.get(side, {}), own)
        axis.set_title(words(panel.get("title", ""), first), **panel.get("title_look", {}))
        axis.set_aspect(spec.get("aspect", "auto"))
        if isinstance(legend, str | Mapping):
            _legend(axis, {"loc": legend} if isinstance(legend, str) else legend)
        if "sharey" in spec and axis is not axes[0]:
            axis.set_ylabel("")
        if across == 1 and axis is not axes[-1]:
            axis.set_xlabel("")
    if "heading" in spec:
        figure.suptitle(words(spec["heading"], main))
    if legend is None or isinstance(legend, int):
        _legend_below(figure, legend, spec.get("last", ()))
    return figure


def _legend_below(figure: Figure, across: int | None, last: Sequence[str]) -> None:
    """Name what all panels show, `across` side by side (all by default), some behind all others."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        entries |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    names = sorted(entries, key=lambda name: [name.startswith(start) for start in last])
    if across != 0 and names:
        columns = min(across or len(names), len(names))
        handles = [entries[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=columns)


def _legend(axis: Axes, spec: Spec) -> None:
    """Add the legend of a panel; `from_top` names the parts of bars as they stand, after others."""
    options = dict(spec)
    handles, labels = axis.get_legend_handles_labels()
    order = list(range(len(handles)))
    if options.pop("from_top", False):
        order.sort(key=lambda at: -at if isinstance(handles[at], BarContainer) else -len(handles))
    axis.legend([handles[at] for at in order], [labels[at] for at in order], **options)


def _known(what: str, name: str, named: Mapping[str, Any]) -> Any:
    if name not in named:
        raise unknown_name(f"{what} of a figure", name, [one for one in named if one])
    return named[name]


def _panels(spec: Spec, tables: Tables) -> Iterator[tuple[Spec, Tables]]:
    """Yield what stands in each panel, and the lines of the tables that it is about."""
    column, main = spec.get("across", spec.get("down")), next(iter(tables))
    apart = tables[main][column].unique() if isinstance(column, str) else [None]
    for value, panel in itertools.product(apart, spec.get("panels", [{}])):
        own = {}
        first = panel.get("of", main)
        for name in (first, *tables):
            table = view(tables[name], panel) if name == first else tables[name]
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
    rows = view(rows, mark)
    if "once" in mark:
        rows = rows.drop_duplicates(mark["once"]).sort_values(mark["once"])
    options = {name: value for name, value in mark.items() if name not in (kind, *_OWN)}
    options = {**shared_looks("series").get(mark.get("like", ""), {}), **options}
    if kind in _TOGETHER:
        _TOGETHER[kind](axis, rows, *wanted, looks=styles, **options)
        return
    for name, own in _groups(rows, mark.get("by", ""), styles):
        look = coloured({**styles.get(name, {}), **options})
        drawn_of = [one for one in wanted if isinstance(one, str) and one in own]
        if own.empty or own[drawn_of].isna().all().any():
            continue
        if name or "label" in look:
            look["label"] = words(look.get("label", str(name)), own)
        for _, part in _groups(own, mark.get("apart", ""), {}):
            _MARKS[kind](axis, *(values(part, one) for one in wanted), **look)


def _groups(rows: pd.DataFrame, by: str, styles: Spec) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the lines of each value of a column that has a style, if any has; all without one."""
    named = rows[rows[by].isin(styles)] if by and styles else rows
    yield from named.groupby(by, sort=False) if by else [("", rows)]


def _styles(mark: Spec, main: pd.DataFrame, rows: pd.DataFrame, looks: Spec) -> Spec:
    """Return the look of each value that a mark draws apart; those of a list are taken in turn.

    That of one of the "systems" is the colour of its chip, with mark and line by place.
    """
    name = mark.get("looks", "")
    if name == "systems":
        chips, places = shared_looks("chips"), itertools.cycle(shared_looks("places").values())
        return {
            name: chips.get(load_system(name).chip.name, chips["another"]) | next(places)
            for name in dict.fromkeys(main[mark["by"]])
        }
    shared = {kind: shared_looks(kind) for kind in ("series", "parts")}
    known = _known("look", name, {"": {}, **shared, **looks})
    if isinstance(known, list):
        shown = main if mark["by"] in main else rows
        known = dict(zip(shown[mark["by"]].unique(), itertools.cycle(known), strict=False))
    return {value: coloured(look) for value, look in known.items()}


def _number(rows: pd.DataFrame, wanted: Any) -> float:
    return np.ravel(values(rows, wanted))[0]


def _finish(axis: Axes, side: str, spec: Spec, tables: Tables) -> None:
    """Give an axis its scale, ticks, names of places, ends and label."""
    rows, ticks = tables[spec.get("of", next(iter(tables)))], spec.get("ticks")
    named = rows
    if isinstance(ticks, str):
        named = rows.drop_duplicates(ticks).sort_values(ticks)
        ticks = list(named[ticks])
    if spec.get("log"):
        getattr(axis, f"set_{side}scale")("log")
        line = getattr(axis, f"{side}axis")
        line.set_major_formatter(StrMethodFormatter(f"{{x:,.12g}}{spec.get('unit', '')}"))
        if not spec.get("minor"):
            line.set_minor_formatter(NullFormatter())
        if ticks:
            line.set_minor_locator(NullLocator())
    if ticks is not None:
        getattr(axis, f"set_{side}ticks")(ticks)
    if "names" in spec:
        name_places(axis, values(named, spec["names"]), vertical=side == "y", places=ticks)
    axis.tick_params(axis=side, **spec.get("tick_look", {}))
    if "strong" in spec:
        for name, strong in zip(axis.get_xticklabels(), rows[spec["strong"]], strict=True):
            name.set(weight="bold" if strong else "normal", rotation=40 * strong)
    if "ends" in spec and len(rows):
        ends = [_number(rows, end) for end in spec["ends"]]
        getattr(axis, f"set_{side}lim")(*ends)
    getattr(axis, f"set_{side}label")(words(spec.get("label", ""), rows))


def name_places(
    axis: Axes,
    names: Sequence[object],
    *,
    vertical: bool = False,
    places: Sequence[float] | None = None,
) -> None:
    """Name places of an axis, by default 0, 1, 2, ...; downwards on the vertical one."""
    side = "y" if vertical else "x"
    where = range(len(names)) if places is None else places
    getattr(axis, f"set_{side}ticks")(where, [str(name) for name in names])
    axis.grid(axis=side, visible=False)
    if vertical:
        axis.set_ylim(len(names) - 0.4, -0.6)


def _equal(
    axis: Axes, rows: pd.DataFrame, columns: Sequence[str], looks: Spec, ends: Any, within: Any
) -> None:
    """Draw where both axes are equal, between multiples of the least and the largest number."""
    numbers = rows[columns].to_numpy(dtype=np.float64)
    line = np.array([ends[0] * np.nanmin(numbers), ends[1] * np.nanmax(numbers)])
    for name, shade in zip(within, (0.08, 0.14)[-len(within) :], strict=True):
        percent = _known("band", name, NAMED)
        band = (line * (1 - percent / 100), line * (1 + percent / 100))
        look = {"color": OKABE_ITO["green"], "alpha": shade, "linewidth": 0}
        axis.fill_between(line, *band, label=f"within {percent:g} %", **look)
    axis.plot(line, line, color=OKABE_ITO["black"], linewidth=0.9)
    axis.set(xlim=line, ylim=line)


def _stack(
    axis: Axes,
    rows: pd.DataFrame,
    group: str,
    part: str | Mapping[str, str],
    value: str = "time",
    *,
    looks: Spec,
    as_given: bool = False,
    total: str = "",
    named: float = 0.0,
    flat: bool = False,
    width: float = 0.66,
    edge_width: float = 0.6,
) -> None:
    """Draw a bar per group of its parts, in the order of their looks or as given, from its foot.

    Parts are the lines of a group, or columns with what they are called. The sum is written above
    as `total` says, or into the parts of `named` or more their number.
    """
    if isinstance(part, Mapping):
        rows = rows.rename(columns=part).melt([group], list(part.values()), "part", value)
        part = "part"
    names = rows[group].unique()
    table = rows.pivot(index=group, columns=part, values=value).loc[names].fillna(0.0)
    order = rows[part].unique() if as_given else [name for name in looks if name in table.columns]
    draw, start, thick = (axis.barh, "left", "height") if flat else (axis.bar, "bottom", "width")
    places, ends = np.arange(len(names)), np.zeros(len(names))
    for name in order:
        look = {start: ends, thick: width, "linewidth": edge_width, "edgecolor": "white"}
        bars = draw(places, table[name], label=name, **look, **looks[name])
        ends = ends + table[name].to_numpy()
        if named:
            texts = [f"{size:.0f}" if size >= named else "" for size in table[name]]
            axis.bar_label(bars, texts, label_type="center", fontsize=9)
    name_places(axis, names, vertical=flat)
    if total:
        axis.margins(y=0.1)
        axis.bar_label(bars, [total.format(whole) for whole in ends], fontsize=8.5)


def _notes(
    axis: Axes,
    x: Any,
    y: Any,
    texts: Any,
    *,
    at: Any,
    marker: str = "",
    label: str = "",
    **look: Any,
) -> None:
    """Write a text beside each point, `at` so many points from it; of a look it has the colour."""
    for *point, text in zip(x, y, texts, strict=True):
        axis.annotate(text, point, xytext=at, textcoords="offset points", **look)


def _labels(axis: Axes, x: Any, y: Any, texts: Any, **look: Any) -> None:
    """Write a text around each point."""
    look = {"ha": "center", "va": "center", "fontsize": 9, "color": _INK} | look
    for *point, text in zip(*np.broadcast_arrays(x, y, texts), strict=True):
        axis.text(*point, text, **look)


def _boxes(axis: Axes, x: Any, y: Any, width: Any, height: Any, **look: Any) -> None:
    """Draw boxes with slightly rounded corners from their lower left ones."""
    look = {"color": "#F4F6F8", "edgecolor": _INK, "linewidth": 1.0} | look
    look |= {"boxstyle": "round,pad=0,rounding_size=1.2", "facecolor": look.pop("color")}
    for left, low, *size in np.broadcast(x, y, width, height):
        axis.add_patch(FancyBboxPatch((left, low), *size, **look))


def _squares(axis: Axes, x: Any, y: Any, width: Any, height: Any, **look: Any) -> None:
    """Draw many boxes as one path, without edges."""
    corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
    vertices = np.array(corners).transpose(2, 0, 1).reshape(-1, 2)
    square = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    path = Path(vertices, square * len(x))
    axis.add_patch(PathPatch(path, facecolor=look["color"], edgecolor="none"))


def _arrows(axis: Axes, x: Any, y: Any, end: Any) -> None:
    look = {"arrowstyle": "->", "color": "black"}
    for start, level, tip in zip(x, y, end, strict=True):
        axis.annotate("", (tip, level), xytext=(start, level), arrowprops=look)


_MARKS: dict[str, Callable[..., object]] = {
    "line": Axes.plot,
    "points": lambda axis, x, y, **look: axis.plot(x, y, **look | {"linestyle": "none"}),
    "dots": lambda axis, x, y, size, **look: axis.scatter(x, y, s=size, **look),
    "step": Axes.step,
    "upright": lambda axis, x, low, high, **look: axis.plot([x, x], [low, high], **look),
    "levels": lambda axis, start, end, y, **look: axis.plot([start, end], [y, y], **look),
    "area": Axes.fill_between,
    "error_bars": lambda axis, x, y, low, high, **look: axis.errorbar(
        x, y, yerr=[y - low, high - y], **look
    ),
    "ranges": Axes.hlines,
    "flat_bars": Axes.barh,
    "bars": Axes.bar,
    "rises": Axes.vlines,
    "notes": _notes,
    "labels": _labels,
    "boxes": _boxes,
    "squares": _squares,
    "arrows": _arrows,
    "words": lambda axis, x, y, texts, **look: axis.text(
        x, y, texts[0], transform=axis.transAxes, **look
    ),
    "at_x": lambda axis, x, **look: [axis.axvline(one, **look) for one in np.unique(x)],
    "at_y": lambda axis, y, **look: [axis.axhline(one, **look) for one in np.unique(y)],
    "between_x": Axes.axvspan,
    "between_y": Axes.axhspan,
    # numbers at rows, downwards, and columns
    "image": lambda axis, row, column, value, **look: axis.imshow(
        pd.Series(value.to_numpy(), [row, column]).unstack(), **look
    ),
}
_TOGETHER: dict[str, Callable[..., object]] = {"equal": _equal, "stack": _stack}
"""Marks that are no plot of values: they draw all lines of a table at once."""
