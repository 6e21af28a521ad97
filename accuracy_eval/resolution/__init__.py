"""What a PASS would have caught: the smallest errors of an output that fail limits on it, from the reference and those limits alone."""

from accuracy_eval.resolution.meter import Resolution, ResolutionMeter
from accuracy_eval.resolution.norms import NormMeter

__all__ = ["NormMeter", "Resolution", "ResolutionMeter"]
