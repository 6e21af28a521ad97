"""A comparison's worker that one case kills, as a fault in a compiled kernel would."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from accuracy_eval.compare.joining import Key
from accuracy_eval.compare.workers import Judge
from accuracy_eval.engine.work import Done


class DeadlyJudge(Judge):
    def run(self, task: Sequence[Key], done: Done) -> None:
        if any(".s3" in ident for ident, _ in task):
            os.kill(os.getpid(), signal.SIGKILL)
        super().run(task, done)
