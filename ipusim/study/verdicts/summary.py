"""What verdicts come to: errors of rows and groups, and the box that opens every page."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ipusim.study.verdicts.compare import error_percent, tier_summary


def with_error(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ``error_percent``, the signed error of the calibrated tier."""
    pairs = zip(frame["calibrated"], frame["published"], strict=True)
    return frame.assign(error_percent=[error_percent(*pair) for pair in pairs])


def errors_by(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return `ipusim.study.verdicts.compare.tier_summary` without tiers that have no value."""
    summary = tier_summary(frame, by=by)
    return summary[summary["rows"] > 0]
