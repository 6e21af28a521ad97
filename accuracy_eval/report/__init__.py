"""Reports: rows in, file out. Writers take `Results` and nothing else, so every form can be written again from results.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from accuracy_eval.errors import MissingDependency, unknown
from accuracy_eval.records import Results

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Writer:
    """A report form.

    module  holds `write(results, folder) -> list[Path]`, imported on first use
    needs   package that it writes with; "" for none
    rereads   goes over the results several times, or holds them all: results that are kept as text are made once for it
    """

    name: str
    module: str
    description: str
    needs: str = ""
    rereads: bool = True

    def load(self) -> Callable[[Results, Path], list[Path]]:
        return cast("Callable[[Results, Path], list[Path]]", import_module(self.module).write)


WRITERS: dict[str, Writer] = {
    w.name: w
    for w in (
        Writer(
            "json",
            "accuracy_eval.report.results_file",
            "results.json: everything, the source of all other forms (docs/results.md)",
            rereads=False,
        ),
        Writer("xlsx", "accuracy_eval.report.xlsx", "summary.xlsx and one workbook per op family and shape", "openpyxl"),
        Writer(
            "html",
            "accuracy_eval.report.html",
            "report.html: one page to look at, sort and filter, with a picture of every error",
            "jinja2",
        ),
        Writer("csv", "accuracy_eval.report.flat", "results.csv: one flat row per verdict with all metrics"),
        Writer("md", "accuracy_eval.report.markdown", "summary.md: findings and counts, for a pull request or job summary"),
        Writer("junit", "accuracy_eval.report.junit", "junit.xml: one test case per verdict"),
    )
}


def writers(forms: Sequence[str], *, allowed: Sequence[str] = tuple(WRITERS)) -> dict[str, Writer]:
    """The writers of `forms`, in the order in which they write.

    UsageError for an unknown form, which names the `allowed` ones; MissingDependency where a form's package is not installed.
    """
    for form in forms:
        if form not in WRITERS:
            raise unknown("report form", form, allowed)
    chosen = {name: w for name, w in WRITERS.items() if name in forms}
    for name, w in chosen.items():
        if w.needs and find_spec(w.needs) is None:
            raise MissingDependency(
                f"report form {name} needs {w.needs}, which is not installed: pip install {w.needs}, or write results.json here "
                f"(--to json) and the rest elsewhere with: accuracy-eval report results.json --to {name}"
            )
    return chosen


def write_reports(results: Results, directory: str | Path, to: Sequence[str] = ("xlsx", "json")) -> list[Path]:
    """Write the report forms named in `to` (keys of WRITERS) into `directory`, which is made if absent; returns the files written.

    All files are written to a temporary folder first and renamed into place at the end: an error leaves what was there before.
    Files that an earlier report of the same forms left there and this one does not have are removed, unless they were changed since.
    UsageError for an unknown form, MissingDependency for one that cannot be written here, before anything is written.
    """
    chosen = writers(to)
    from accuracy_eval.report.files import publish

    whole = replace(results, tensors=tuple(results.tensors)) if any(w.rereads for w in chosen.values()) else results
    return publish(Path(directory), {form: partial(w.load(), whole if w.rereads else results) for form, w in chosen.items()})


def load_results(path: str | Path) -> Results:
    """The Results stored in a results.json, or in the directory that holds one. FileError or SchemaError say what is wrong with it."""
    from accuracy_eval.report.results_file import read

    return read(Path(path))


def to_frame(results: Results) -> DataFrame:
    """The results as a pandas DataFrame: a row for every side and every pair of sides, its facts, sizes and metrics the columns.

    The same rows and columns as results.csv, with numbers as numbers and None where a metric has no value.
    Raises MissingDependency where pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependency("to_frame needs pandas, which is not installed: pip install pandas, or write results.csv") from error

    from accuracy_eval.report.flat import table

    names, rows = table(results)
    return pd.DataFrame(rows, columns=names)


def console_table(results: Results, *, width: int = 80, color: bool = False, limit: int = 20, verbose: bool = False) -> str:
    """The result as text of at most `width` columns: verdict, findings first (at most `limit` of them), counts, what to run next.

    verbose  every finding, each with the whole text of all its sides and pairs
    """
    from accuracy_eval.report.console import render

    return render(results, width=width, color=color, limit=limit, verbose=verbose)
