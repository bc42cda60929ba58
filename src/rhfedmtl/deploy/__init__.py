"""Real base stations and terminals: processes that carry the roles' messages over gRPC with mutual TLS."""

from importlib.util import find_spec

from rhfedmtl.errors import MissingExtraError

# Only check that the packages exist: `local.preload` is forked, and a process that has used gRPC must not be forked.
for _package in ("grpc", "google", "cryptography"):
    if find_spec(_package) is None:
        raise MissingExtraError(f"real networks need {_package}: pip install 'rhfedmtl[deploy]'")
