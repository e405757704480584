"""How every figure looks: colour-blind safe, readable in grey, the same bytes for the same data."""

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl

from ipusim.files import TEMPLATES

SVG_SALT = "ipusim"
"""What matplotlib makes its ids of, so that they are the same in every run."""

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#8A8F98",
}
"""The palette of Okabe and Ito (2008), which people with any colour vision can tell apart."""

PHASES: dict[str, dict[str, str]] = {
    "sync": {"color": OKABE_ITO["grey"]},
    "exchange": {"color": OKABE_ITO["orange"]},
    "copy": {"color": OKABE_ITO["yellow"]},
    "compute": {"color": OKABE_ITO["blue"]},
}
"""One look per phase of a superstep, in the order in which they follow, in every figure."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in the workbook's style, whatever style the caller has set."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rc_file(TEMPLATES / "figures.mplstyle", use_default_template=False)
        mpl.rcParams["svg.hashsalt"] = SVG_SALT
        yield
