"""Published rows, the verdicts on the predictions, and the notebooks that show both.

This is the only stage that may read ``data/published`` and ``data/runs``; nothing that predicts
imports it.
"""
