"""`python -m rhfedmtl`: the command line."""

from rhfedmtl.cli.main import main

main()
