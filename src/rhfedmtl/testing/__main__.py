"""``python -m rhfedmtl.testing conformance NAME``: a line for each check of an entry, and status 1 where one fails."""

from __future__ import annotations

import argparse
import sys

from rhfedmtl.errors import RHFedMTLError
from rhfedmtl.testing.conformance import checks


def main() -> int:
    """Run the checks of the entries that are named."""
    parser = argparse.ArgumentParser(prog="python -m rhfedmtl.testing", description=__doc__)
    commands = parser.add_subparsers(required=True)
    conformance = commands.add_parser("conformance", help="checks of entries of the registries, by name")
    conformance.add_argument("names", nargs="+", metavar="NAME", help="of an algorithm, loss, data set, engine, …")
    conforming = [_conforms(name) for name in parser.parse_args().names]
    return 0 if all(conforming) else 1


def _conforms(name: str) -> bool:
    """Run all checks of a name; a check that fails does not stop the others."""
    good = True
    try:
        for noun, what, check in checks(name):
            try:
                check()
                answer = "ok    "
            except Exception as error:
                good, first = False, next(iter(filter(None, str(error).splitlines())), type(error).__name__)
                answer = f"FAILED {first.strip()}\n       "
            sys.stdout.write(f"{answer} {noun} {name}: {what}\n")
    except RHFedMTLError as error:
        sys.stderr.write(f"error: {error}\n")
        return False
    return good


if __name__ == "__main__":
    sys.exit(main())
