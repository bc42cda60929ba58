"""Identities of nodes: a private certificate authority, the certificates of nodes, and TLS credentials made from them.

A certificate carries network, role and number of its node as a URI, ``rhfedmtl://NETWORK/terminal/7``, and as a host
name, ``terminal-7.NETWORK.rhfedmtl``. Callers check the host name, so a node may run at any address. `Authority` issues
certificates, `Credentials` reads and checks the files of a node, and `caller` says who is at the other end of a stream.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.files import PRIVATE, PUBLIC_MODE, write_whole

CLOUD, STATION, TERMINAL, OPERATOR = ROLES = ("cloud", "station", "terminal", "operator")
NODE_DAYS = 365
AUTHORITY_DAYS = 3650
MOST_NODES = 1_000_000
"""Numbers of nodes must be smaller, because tables of a training have an entry for every number up to the largest."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_URI = re.compile(r"rhfedmtl://([a-z0-9-]+)/([a-z]+)/([0-9]{1,9})")
_EARLIER = timedelta(days=1)  # clocks of other machines may be behind

_SIGNS = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
_SIGNS_CERTIFICATES = x509.KeyUsage(False, False, False, False, False, True, True, False, False)


def check_number(number: Any, role: str) -> int:
    """Return the number of a node; refuse a value out of range before it is written anywhere."""
    if type(number) is not int or not 0 <= number < MOST_NODES:
        raise ConfigError(f"no number of a {role}: {number!r}; numbers are integers from 0 to {MOST_NODES - 1}")
    return number


@dataclass(frozen=True)
class Identity:
    """Network, role and number of a node."""

    network: str
    role: str
    number: int = 0

    def __post_init__(self) -> None:
        """Check names and number: a certificate must be able to carry them."""
        if not _NAME.fullmatch(self.network):
            raise ConfigError(f"network {self.network!r}: use small letters, digits and '-', at most 42 of them")
        if self.role not in ROLES:
            raise ConfigError(f"no node {self.role}/{self.number}: roles are {', '.join(ROLES)}")
        check_number(self.number, self.role)

    @property
    def uri(self) -> str:
        """Name of the node in its certificate."""
        return f"rhfedmtl://{self.network}/{self.role}/{self.number}"

    @property
    def host(self) -> str:
        """Host name in the certificate, which callers check."""
        return f"{self.role}-{self.number}.{self.network}.rhfedmtl"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Read an identity from the URI of a certificate."""
        parts = _URI.fullmatch(uri)
        if parts is None:
            raise PeerError(f"{uri[:100]!r} names no node")
        try:
            return cls(parts[1], parts[2], int(parts[3]))
        except ConfigError as error:
            raise PeerError(str(error)) from None

    def __str__(self) -> str:
        return f"{self.role} {self.number}" if self.role in (STATION, TERMINAL) else self.role


@dataclass(frozen=True)
class PeerCertificate:
    """Content of a peer's certificate: identity, serial number (for revocation) and expiry."""

    identity: Identity
    serial: str
    until: datetime

    @property
    def expired(self) -> bool:
        """True if the certificate has expired."""
        return self.until < datetime.now(UTC)

    @classmethod
    def read(cls, certificate: bytes) -> PeerCertificate:
        """Read a certificate (PEM) whose signature TLS has checked."""
        try:
            content = x509.load_pem_x509_certificate(certificate)
            names = content.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except (ValueError, x509.ExtensionNotFound) as error:
            raise PeerError(f"a certificate without a name: {error}") from None
        if len(uris) != 1:
            raise PeerError(f"a certificate with {len(uris)} names of nodes")
        return cls(Identity.parse(uris[0]), f"{content.serial_number:x}", content.not_valid_after_utc)


class Authority:
    """A private certificate authority. The holder of its key can issue a certificate for any node."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.certificate = certificate
        self._certificate = x509.load_pem_x509_certificate(certificate)
        self._key: Any = serialization.load_pem_private_key(key, None)

    @classmethod
    def make(cls, network: str) -> tuple[Authority, bytes]:
        """Return a new authority and its key (PEM)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{network} authority")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        secret = _private_pem(key)
        return cls(certificate.public_bytes(serialization.Encoding.PEM), secret), secret

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Load the authority that `network init` wrote."""
        try:
            return cls((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"no certificate authority in {folder}: {error}") from None

    def issue(self, identity: Identity, public_key: Any, *, lasts: timedelta = timedelta(days=NODE_DAYS)) -> bytes:
        """Return a certificate for a node, valid for ``lasts``. The role decides on server and client use."""
        now = datetime.now(UTC)
        uses = {
            CLOUD: [ExtendedKeyUsageOID.SERVER_AUTH],
            STATION: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
        }.get(identity.role, [ExtendedKeyUsageOID.CLIENT_AUTH])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.host)]
        authority = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity))]))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + lasts) - _EARLIER)
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue_for(self, identity: Identity, request: bytes) -> bytes:
        """Return a certificate for the key of a signing request. The name in the request is ignored."""
        return self.issue(identity, requested_key(request))


@dataclass(frozen=True)
class Credentials:
    """Files of a node: key and certificate together, and the authorities that it trusts. Read again at each use."""

    node_file: Path
    authorities: Path

    @classmethod
    def of(cls, folder: Path) -> Credentials:
        """Return the credentials in the folder of a node."""
        return cls(folder / "node.pem", folder / "ca.crt")

    @property
    def peer(self) -> PeerCertificate:
        """Content of the certificate."""
        return PeerCertificate.read(self.pair()[1])

    def write(self, key: bytes, certificate: bytes, authorities: bytes) -> None:
        """Write both files. Key and certificate are replaced in a single step."""
        self.node_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # other users must not read rows and keys
        write_whole(self.authorities, authorities, force=True, mode=PUBLIC_MODE)
        write_whole(self.node_file, key + certificate, force=True, mode=PRIVATE)

    def check(self, identity: Identity) -> None:
        """Check that the certificate names this node, matches the key and has not expired."""
        key, certificate = self.pair()
        try:
            public = serialization.load_pem_private_key(key, None).public_key()
            certified = x509.load_pem_x509_certificate(certificate).public_key()
        except ValueError as error:
            raise ConfigError(f"{self.node_file} cannot be read: {error}") from None
        peer = self.peer
        if peer.identity != identity:
            raise ConfigError(f"{self.node_file} has the certificate of {peer.identity.uri}, not of {identity.uri}")
        if public != certified:
            raise ConfigError(f"key and certificate in {self.node_file} do not belong together: copy the whole file")
        if peer.expired:
            raise ConfigError(
                f"the certificate in {self.node_file} expired on {peer.until:%Y-%m-%d}: `rhfedmtl network rotate` "
                "makes a new certificate"
            )
        _bytes(self.authorities)

    def pair(self) -> tuple[bytes, bytes]:
        """Return key and certificate; refuse a key that other users can read."""
        try:
            mode = self.node_file.stat().st_mode & 0o077
        except OSError as error:
            folder = self.node_file.parent.resolve()  # next to the authority, the folder has the name of the node
            node = f"{folder.parent} {folder.name}" if (folder.parent / "ca").is_dir() else "NETWORK NODE"
            way_out = f"`rhfedmtl network rotate {node}` writes one"
            raise ConfigError(f"no key {self.node_file}: {error.strerror}; {way_out}") from None
        if mode and os.name == "posix":
            raise ConfigError(f"{self.node_file} can be read by others: chmod 600 {self.node_file}")
        parts = re.findall(rb"-----BEGIN [^-]+-----.*?-----END [^-]+-----\n", _bytes(self.node_file), re.DOTALL)
        keys = [part for part in parts if b"PRIVATE KEY" in part]
        certificates = [part for part in parts if b"PRIVATE KEY" not in part]
        if len(keys) != 1 or not certificates:
            raise ConfigError(f"{self.node_file} must hold a private key and its certificate")
        return keys[0], b"".join(certificates)

    def sign(self, text: bytes) -> bytes:
        """Return a proof that the text comes from this node: its certificate and a signature."""
        secret, certificate = self.pair()
        key: Any = serialization.load_pem_private_key(secret, None)
        der = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
        return struct.pack("<H", len(der)) + der + bytes(key.sign(text, ec.ECDSA(hashes.SHA256())))

    def check_signed(self, identity: Identity, text: bytes, proof: bytes) -> None:
        """Check that ``identity`` signed the text, with a valid certificate from an authority in `authorities`."""
        try:
            end = 2 + struct.unpack_from("<H", proof)[0]
            certificate = x509.load_der_x509_certificate(proof[2:end])
            peer = PeerCertificate.read(certificate.public_bytes(serialization.Encoding.PEM))
            _check_issued(certificate, _bytes(self.authorities))
            key: Any = certificate.public_key()
            key.verify(proof[end:], text, ec.ECDSA(hashes.SHA256()))
        except (ValueError, TypeError, AttributeError, struct.error, InvalidSignature) as error:
            raise PeerError(f"a proof of {identity} is invalid: {error or type(error).__name__}") from None
        if peer.identity != identity or peer.expired:
            raise PeerError(f"a proof of {identity} by {peer.identity.uri}, valid until {peer.until:%Y-%m-%d}")

    def client(self) -> grpc.ChannelCredentials:
        """Return the TLS credentials for calls to the node above."""
        return grpc.ssl_channel_credentials(_bytes(self.authorities), *self.pair())

    def server(self, *, certified_callers: bool = True) -> grpc.ServerCredentials:
        """Return the TLS credentials of a server for nodes below. New connections use new files as soon as they change.

        With ``certified_callers``, callers need a certificate.
        """
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self.fetcher(), certified_callers)

    def stamp(self) -> tuple[int, ...]:
        """Return the times of the files: the stamp changes when a file changes."""
        stats = [path.stat() for path in (self.node_file, self.authorities) if path.exists()]
        return tuple(time for stat in stats for time in (stat.st_mtime_ns, stat.st_ctime_ns))

    def _configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([self.pair()], _bytes(self.authorities))

    def fetcher(self) -> Callable[[], Any]:
        """Return a function that gives gRPC new credentials once they are complete, and None without a change."""
        loaded, identity = self.stamp(), self.peer.identity

        def fetch() -> Any:
            nonlocal loaded
            now = self.stamp()
            if now == loaded:
                return None
            try:
                self.check(identity)
                configuration = self._configuration()
            except RHFedMTLError:
                return None  # the old credentials serve until the new files are complete
            loaded = now
            return configuration

        return fetch


def new_key() -> tuple[Any, bytes]:
    """Return a new private key and its PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _private_pem(key)


def certifies(certificate: bytes, request: bytes) -> bool:
    """Return True if a certificate is for the key of a signing request."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    keys = x509.load_pem_x509_certificate(certificate).public_key(), requested_key(request)
    return keys[0].public_bytes(*form) == bytes(keys[1].public_bytes(*form))


def requested_key(request: bytes) -> Any:
    """Return the key of a signing request, after checking that its sender holds the private key."""
    try:
        content = x509.load_pem_x509_csr(request)
        key = content.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PeerError(f"no certificate signing request: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PeerError("a signing request needs a key on the elliptic curve P-256")
    if not content.is_signature_valid:
        raise PeerError("a signing request needs its own valid signature")
    return key


def signing_request(key: Any) -> bytes:
    """Return a signing request for this key. The signer decides which node the certificate names."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rhfedmtl node")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def caller(auth_context: dict[str, Any]) -> PeerCertificate:
    """Return the certificate of the caller of a server; refuse an expired certificate."""
    certificates = auth_context.get("x509_pem_cert")
    if not certificates:
        raise PeerError("a caller without a certificate")
    peer = PeerCertificate.read(certificates[0])
    if peer.expired:  # TLS checks it only at the start of a connection
        raise PeerError(f"the certificate of {peer.identity} has expired")
    return peer


def _check_issued(certificate: x509.Certificate, authorities: bytes) -> None:
    """Refuse a certificate that was not issued by one of these authorities."""
    for authority in x509.load_pem_x509_certificates(authorities):
        with suppress(ValueError, TypeError, InvalidSignature):
            return certificate.verify_directly_issued_by(authority)
    raise ValueError("its certificate comes from no trusted authority")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _private_pem(key: Any) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem
