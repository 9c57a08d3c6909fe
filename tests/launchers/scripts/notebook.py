"""Execute a notebook: `%run` of a script, or cells that start the hook and train; prints what its cells printed."""

import sys

import nbclient
import nbformat

CELLS = {
    "run": ["%run alone.py"],
    "cells": ["from sm_profiler.hook import get_hook\nhook = get_hook()", "import loop", "loop.train(0, 1)"],
}


def main() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS[sys.argv[1]]])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    for cell in notebook.cells:
        for output in cell.outputs:
            print(output.get("text", ""))


if __name__ == "__main__":
    main()
