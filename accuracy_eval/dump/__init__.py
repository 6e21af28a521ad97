"""dump: run a suite's cases on a device and store every output with its digests.

The working form is a folder `OUT.parts` with one finished file a case and candidate, packed at the end into OUT: a kill at any
moment loses at most the cases in flight, and `resume` goes on from what is there.
"""

from accuracy_eval.dump.dumping import dump
from accuracy_eval.dump.summary import DumpSummary

__all__ = ["DumpSummary", "dump"]
