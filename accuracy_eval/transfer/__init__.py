"""Files between hosts over SSH: resumable, verified at both ends, known hosts only.

    transfer(["a.h5"], "user@host:dumps/")      transfer(["host:dumps"], ".", options=Options(dry_run=True))

Bytes and digests only; what the files hold is not looked at. paramiko is loaded by the first connection.
"""

from accuracy_eval.transfer.locations import Action, FileResult, Location, Options, parse_location
from accuracy_eval.transfer.moving import transfer
from accuracy_eval.transfer.remote import Remote
from accuracy_eval.transfer.sessions import Session, connect

__all__ = ["Action", "FileResult", "Location", "Options", "Remote", "Session", "connect", "parse_location", "transfer"]
