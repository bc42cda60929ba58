"""A terminal of an rhfedmtl network, for small machines.

The parts of rhfedmtl that it needs lie in its folder ``lib``. An installed rhfedmtl, of any version, thus has no effect
on this package, and the two packages share no file.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the command line with the parts in ``lib``, even if rhfedmtl is installed too."""
    sys.path.insert(0, str(Path(__file__).parent / "lib"))
    from rhfedmtl.deploy.terminal.program import main as run

    run()
