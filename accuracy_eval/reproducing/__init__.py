"""One element of a stored output with everything it was computed from: codes in hex, to be put into any other program."""

from __future__ import annotations

from accuracy_eval.reproducing.elements import element, whole

__all__ = ["element", "whole"]
