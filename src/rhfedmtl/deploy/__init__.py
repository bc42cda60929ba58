"""Real base stations and terminals: processes that carry the roles' messages over gRPC with mutual TLS."""

from importlib.util import find_spec

from rhfedmtl.errors import MissingExtraError

# Looked for and not imported: processes are forked from one that must not have started gRPC.
for _package in ("grpc", "google", "cryptography"):
    if find_spec(_package) is None:
        raise MissingExtraError(f"real networks need {_package}: pip install 'rhfedmtl[deploy]'")
