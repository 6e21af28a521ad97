"""pytest plugin: the fixture `accuracy`, and one GPU for each xdist worker.

    def test_my_matmul(accuracy):
        accuracy.verify(my_matmul, reference="gemm", inputs={"a": accuracy.seeded((64, 256), "bfloat16"), "b": …})

A failure's text is the report's text; what was measured becomes JUnit properties. Loading this imports nothing of the package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from accuracy_eval.checking import Comparison
    from accuracy_eval.verifying import Seeded, Verification

RECORDED = ("rel_fro", "max_abs", "ulp_max", "budget_max", "snr_db")  # metrics that become properties


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """In an xdist worker: show it one GPU, before anything opens one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        return
    from accuracy_eval.backends.pinning import pinned, worker_number

    number = worker_number(worker)
    if number is not None:
        os.environ.update(pinned(number, os.environ))


@pytest.fixture
def accuracy(request: pytest.FixtureRequest) -> Accuracy:
    """`verify` and `check` of accuracy_eval that fail the test with the report's text."""
    properties = request.node.user_properties  # what record_property fills, without its warning about the xunit2 form of --junitxml
    return Accuracy(lambda name, value: properties.append((name, value)))


class Accuracy:
    """The fixture's value."""

    def __init__(self, record_property: Callable[[str, object], None]) -> None:
        self._record = record_property

    def seeded(self, shape: tuple[int, ...], dtype: str = "float32", input_class: str = "normal") -> Seeded:
        """As `accuracy_eval.seeded`."""
        from accuracy_eval.verifying import seeded

        return seeded(shape, dtype, input_class)

    def verify(self, fn: Callable[..., Any], **arguments: Any) -> Verification:
        """As `accuracy_eval.verify`; AssertionError with the whole message unless it passed."""
        __tracebackhide__ = True
        from accuracy_eval.verifying import verify

        found = verify(fn, **arguments)
        self._properties(found.comparisons.values())
        if not found.passed:
            raise AssertionError(found.message)
        return found

    def check(self, actual: Any, expected: Any = None, **arguments: Any) -> Comparison:
        """As `accuracy_eval.check`; AssertionError with the whole message unless it passed."""
        __tracebackhide__ = True
        from accuracy_eval.checking import check

        found = check(actual, expected, **arguments)
        self._properties([found])
        if not found.passed:
            raise AssertionError(found.message)
        return found

    def _properties(self, comparisons: Iterable[Comparison]) -> None:
        for c in comparisons:
            where = f"accuracy_eval.{c.result.case_id}.{c.result.tensor}"
            self._record(f"{where}.verdict", c.verdict)
            for name in RECORDED:
                if c.metrics.get(name) is not None:
                    self._record(f"{where}.{name}", c.metrics[name])
            if c.diagnoses:
                self._record(f"{where}.causes", ", ".join(d.code for d in c.diagnoses))
