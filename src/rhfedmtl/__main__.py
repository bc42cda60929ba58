"""Run the command line: ``python -m rhfedmtl``."""

from rhfedmtl.cli.main import main

main()
