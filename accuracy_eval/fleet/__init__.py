"""A suite on several hosts at once, over SSH: checked first, resumed when a line breaks, fetched, verified and compared as one.

    run_fleet(load_fleet("fleet.toml"))      the dumps, in the order of the file

The hosts need an SSH server and a Python with this package, or with what it imports (`push` brings the package along).
"""

from accuracy_eval.fleet.plan import Fleet, Host, load_fleet
from accuracy_eval.fleet.running import Hooks, run_fleet
from accuracy_eval.fleet.wheel import build_wheel

__all__ = ["Fleet", "Hooks", "Host", "build_wheel", "load_fleet", "run_fleet"]
