"""``python -m rhfedmtl.testing conformance NAME``: run the checks of an entry; status 1 if a check fails."""

from __future__ import annotations

import argparse
import sys

from rhfedmtl.errors import RHFedMTLError
from rhfedmtl.testing.conformance import checks


def main() -> int:
    """Run the checks of the named entries, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m rhfedmtl.testing", description=__doc__)
    commands = parser.add_subparsers(required=True)
    conformance = commands.add_parser("conformance", help="run the checks of registry entries, by name")
    conformance.add_argument("names", nargs="+", metavar="NAME", help="name of an algorithm, loss, data set, engine, …")
    status = 0
    for name in parser.parse_args().names:
        try:
            for noun, requirement, check in checks(name):
                try:
                    check()
                    answer = "ok    "
                except Exception as error:  # A failed check must not stop the others.
                    status, first = 1, next(iter(filter(None, str(error).splitlines())), type(error).__name__)
                    answer = f"FAILED {first.strip()}\n       "
                sys.stdout.write(f"{answer} {noun} {name}: {requirement}\n")
        except RHFedMTLError as error:
            sys.stderr.write(f"error: {error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
