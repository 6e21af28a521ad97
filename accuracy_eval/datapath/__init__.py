"""Bit models of matrix units, the order in which libraries use them, probes, and the search that explains an output.

dot, gemm            what a unit returns for given operands
UNITS, find_unit     which units there are, where their rules come from, how certain they are
"""

from __future__ import annotations

from accuracy_eval.datapath.card import Call, FormatCard, NumericsCard, model_matmul, numerics_card
from accuracy_eval.datapath.compositions import Composition, canonical, parse
from accuracy_eval.datapath.evaluation import Problem, evaluate, problem_of
from accuracy_eval.datapath.explaining import explain, explain_gemm
from accuracy_eval.datapath.explanation import Explanation
from accuracy_eval.datapath.predicting import predict
from accuracy_eval.datapath.products import dot, gemm
from accuracy_eval.datapath.units import CERTAINTIES, UNITS, Unit, find_unit, units_of

__all__ = [
    "CERTAINTIES", "UNITS", "Call", "Composition", "Explanation", "FormatCard", "NumericsCard", "Problem", "Unit", "canonical", "dot",
    "evaluate", "explain", "explain_gemm", "find_unit", "gemm", "model_matmul", "numerics_card", "parse", "predict", "problem_of",
    "units_of",
]  # fmt: skip
