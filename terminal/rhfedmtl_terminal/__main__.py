"""Entry point of ``python -m rhfedmtl_terminal``."""

from rhfedmtl_terminal import main

main()
