"""A small notebook for tests of what runs notebooks."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = """\
batch_sizes: list = [2, 4]  # batch sizes
factor: float = 1.5  # a factor
repeats: int = 3  # how often
precision: str = "16.16"  # number format
output_dir: str = ""  # where to write"""


def write_study(folder, name, *sources, title="A study", parameters=PARAMETERS):
    cells = [new_markdown_cell(f"# {title}\n\nWhat it does.\nIn two lines.\n\nMore.")]
    cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    cells += [new_code_cell(source) for source in sources]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path
