"""What a PASS would have caught: the smallest errors of an output that fail its budget gates, from the reference and its budgets alone."""

from accuracy_eval.resolution.meter import Resolution, ResolutionMeter

__all__ = ["Resolution", "ResolutionMeter"]
