"""Main function of a node process that `Supervisor` forks.

It sends output to the log file, and ends the node when the supervisor ends. It never restarts a node: the supervisor
does.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import sys
from pathlib import Path

from rhfedmtl.deploy.terminal.program import CANNOT_RUN
from rhfedmtl.errors import RHFedMTLError


def run_node(role: str, paths: list[Path], log: Path, environment: dict[str, str]) -> None:
    """Run a node in this process until it ends or the supervisor ends.

    Exit with `CANNOT_RUN` if the configuration cannot work: the supervisor then does not start the node again.

    Parameters
    ----------
    role : str
        Key of `deploy.nodes.ROLES`.
    paths : list[Path]
        Configuration files; only terminals may have several.
    log : Path
        File for the log and all other output.
    environment : dict[str, str]
        Variables that the fork server does not have.
    """
    os.environ |= environment
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    parent = mp.parent_process()
    # Import after the redirection, so warnings of these modules go to the log.
    from rhfedmtl.deploy.node.log import Log
    from rhfedmtl.deploy.node.serve import serve
    from rhfedmtl.deploy.node.state import UnwrittenError
    from rhfedmtl.deploy.nodes import ROLES

    with contextlib.suppress(KeyboardInterrupt):
        try:
            serve(ROLES[role](), paths, lambda: parent is not None and not parent.is_alive())
        except UnwrittenError as error:
            Log(log.stem)("ended", "error", reason=str(error))
            raise SystemExit(error.status) from None
        except RHFedMTLError as error:
            Log(log.stem)("cannot run", "error", reason=str(error))
            raise SystemExit(CANNOT_RUN) from None
