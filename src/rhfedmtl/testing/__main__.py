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
    status = 0
    for name in parser.parse_args().names:
        try:
            for noun, what, check in checks(name):
                try:
                    check()
                    answer = "ok    "
                except Exception as error:  # a check that fails does not stop the others
                    status, first = 1, next(iter(filter(None, str(error).splitlines())), type(error).__name__)
                    answer = f"FAILED {first.strip()}\n       "
                sys.stdout.write(f"{answer} {noun} {name}: {what}\n")
        except RHFedMTLError as error:
            sys.stderr.write(f"error: {error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
