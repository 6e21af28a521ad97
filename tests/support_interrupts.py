"""The command as a process that hears SIGINT. A shell may have started the tests with it ignored, which children inherit, and preexec_fn
would fork this process, which has threads."""

import sys

_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from accuracy_eval.cli import main
main()
"""
HEARING = [sys.executable, "-c", _PROGRAM]  # followed by what the command is given
