"""Error-free sums and products: exact, by Fraction."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accuracy_eval.cpu_ref.pairs import high_part, quick_two_sum, two_prod, two_sum

LARGE = 2.0**500
NUMBERS = st.floats(allow_nan=False, min_value=-LARGE, max_value=LARGE).filter(lambda x: x == 0 or abs(x) > 2.0**-400)


def exact(pair):
    return Fraction(float(pair[0])) + Fraction(float(pair[1]))


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_sum_and_what_it_lost_are_the_exact_sum(a, b):
    assert exact(two_sum(a, b)) == Fraction(a) + Fraction(b)
    large, small = sorted((a, b), key=abs, reverse=True)
    assert exact(quick_two_sum(large, small)) == Fraction(a) + Fraction(b)
    assert two_sum(a, b)[0] == a + b


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_product_and_what_it_lost_are_the_exact_product(a, b):
    assert exact(two_prod(a, b)) == Fraction(a) * Fraction(b)
    assert two_prod(a, b)[0] == a * b


@settings(deadline=None)
@given(NUMBERS)
def test_a_high_part_and_the_rest_have_26_bits_each(a):
    for part in (high_part(a), a - high_part(a)):
        mantissa = np.frexp(part)[0]
        assert mantissa * 2.0**26 == np.rint(mantissa * 2.0**26)


@pytest.mark.parametrize("module", ["gemm", "wide", "rounding", "sampling", "reduce", "special"])
def test_importing_a_reference_builds_no_tables(module):
    code = f"import sys, accuracy_eval.cpu_ref.{module}; print('mpmath' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
