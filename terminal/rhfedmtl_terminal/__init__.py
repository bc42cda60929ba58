"""One terminal of an rhfedmtl network.

The parts of rhfedmtl that it needs lie in ``lib``, under this package's own roof: whether the whole library is
installed beside it, or in which version, changes nothing here, and neither has a file of the other.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the program with these parts and no others."""
    sys.path.insert(0, str(Path(__file__).parent / "lib"))
    from rhfedmtl.deploy.terminal.program import main as run

    run()
