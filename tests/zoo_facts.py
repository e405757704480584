"""Counts of networks that others published (data/models/model_zoo_facts.csv)."""

from ipusim.files import data_dir, read_records


def facts() -> list[dict[str, str]]:
    """Return all facts, one for each network and input."""
    return read_records(data_dir() / "models" / "model_zoo_facts.csv")


def fact(model: str) -> dict[str, str]:
    """Return the first fact of a network."""
    return next(line for line in facts() if line["model"] == model)
