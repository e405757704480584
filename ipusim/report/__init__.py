"""What a run hands back: its numbers and tables, advice, a trace and a page."""

from ipusim.report.report import Estimate, Report, RooflineReport, compare

__all__ = ["Estimate", "Report", "RooflineReport", "compare"]
