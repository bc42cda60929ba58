"""Who is who: a private certificate authority, certificates with role and number inside, and TLS made from them.

A certificate names its node as a URI, ``rhfedmtl://NETWORK/terminal/7``, and as a host,
``terminal-7.NETWORK.rhfedmtl``, which is the name that callers insist on, wherever the node runs.
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
from rhfedmtl.files import PRIVATE, PUBLIC, write_whole

CLOUD, STATION, TERMINAL, OPERATOR = ROLES = ("cloud", "station", "terminal", "operator")
NODE_DAYS = 365
AUTHORITY_DAYS = 3650
MOST_NODES = 1_000_000
"""Numbers of nodes are smaller: tables of a training have a place for each up to the largest."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_URI = re.compile(r"rhfedmtl://([a-z0-9-]+)/([a-z]+)/([0-9]{1,9})")
_EARLIER = timedelta(days=1)  # clocks of other machines may be behind

_SIGNS = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
_SIGNS_CERTIFICATES = x509.KeyUsage(False, False, False, False, False, True, True, False, False)


def check_number(number: Any, what: str) -> int:
    """The number of a node; whatever cannot be one is refused before it is written down anywhere."""
    if type(number) is not int or not 0 <= number < MOST_NODES:
        raise ConfigError(f"no number of a {what}: {number!r}; numbers are whole, from 0 to {MOST_NODES - 1}")
    return number


@dataclass(frozen=True)
class Identity:
    """A node of a network."""

    network: str
    role: str
    number: int = 0

    def __post_init__(self) -> None:
        """Refuse names that a certificate cannot carry."""
        if not _NAME.fullmatch(self.network):
            raise ConfigError(f"network {self.network!r}: use small letters, digits and '-', at most 42 of them")
        if self.role not in ROLES:
            raise ConfigError(f"no node {self.role}/{self.number}: roles are {', '.join(ROLES)}")
        check_number(self.number, self.role)

    @property
    def uri(self) -> str:
        """Name in the certificate."""
        return f"rhfedmtl://{self.network}/{self.role}/{self.number}"

    @property
    def host(self) -> str:
        """Name that a caller insists on."""
        return f"{self.role}-{self.number}.{self.network}.rhfedmtl"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Read what `uri` wrote."""
        found = _URI.fullmatch(uri)
        if found is None:
            raise PeerError(f"{uri[:100]!r} names no node")
        try:
            return cls(found[1], found[2], int(found[3]))
        except ConfigError as error:
            raise PeerError(str(error)) from None

    def __str__(self) -> str:
        return f"{self.role} {self.number}" if self.role in (STATION, TERMINAL) else self.role


@dataclass(frozen=True)
class PeerCertificate:
    """What a peer's certificate says: who, and the serial number by which it can be revoked."""

    identity: Identity
    serial: str
    until: datetime

    @property
    def expired(self) -> bool:
        """Whether it counts no more."""
        return self.until < datetime.now(UTC)

    @classmethod
    def read(cls, certificate: bytes) -> PeerCertificate:
        """Read a certificate (PEM) whose signature TLS has checked."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except (ValueError, x509.ExtensionNotFound) as error:
            raise PeerError(f"a certificate without a name: {error}") from None
        if len(uris) != 1:
            raise PeerError(f"a certificate with {len(uris)} names of nodes")
        return cls(Identity.parse(uris[0]), f"{found.serial_number:x}", found.not_valid_after_utc)


class Authority:
    """A private certificate authority; whoever holds its key can make any node."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.certificate = certificate
        self._certificate = x509.load_pem_x509_certificate(certificate)
        self._key: Any = serialization.load_pem_private_key(key, None)

    @classmethod
    def make(cls, network: str) -> tuple[Authority, bytes]:
        """A new authority, and its key."""
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
        """The authority that `network init` wrote."""
        try:
            return cls((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"no certificate authority in {folder}: {error}") from None

    def issue(self, identity: Identity, public_key: Any, *, lasts: timedelta = timedelta(days=NODE_DAYS)) -> bytes:
        """Certificate for a node; what it may be used for follows from its role."""
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
        """Certificate for a signing request; only its key counts, and that its sender holds it."""
        return self.issue(identity, requested_key(request))


@dataclass(frozen=True)
class Credentials:
    """Key and certificate of a node in one file, and the authorities that it trusts; read anew whenever needed."""

    own: Path
    authorities: Path

    @classmethod
    def of(cls, folder: Path) -> Credentials:
        """The files of a node's folder."""
        return cls(folder / "node.pem", folder / "ca.crt")

    @property
    def peer(self) -> PeerCertificate:
        """What the certificate says."""
        return PeerCertificate.read(self.pair()[1])

    def write(self, key: bytes, certificate: bytes, authorities: bytes) -> None:
        """Write both files; key and certificate change together."""
        self.own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # rows and keys are for the node alone
        write_whole(self.authorities, authorities, force=True, mode=PUBLIC)
        write_whole(self.own, key + certificate, force=True, mode=PRIVATE)

    def check(self, identity: Identity) -> None:
        """Refuse credentials that are not those of this node, do not belong together, or count no more."""
        key, certificate = self.pair()
        try:
            public = serialization.load_pem_private_key(key, None).public_key()
            certified = x509.load_pem_x509_certificate(certificate).public_key()
        except ValueError as error:
            raise ConfigError(f"{self.own} cannot be read: {error}") from None
        found = self.peer
        if found.identity != identity:
            raise ConfigError(f"the certificate in {self.own} is that of {found.identity.uri}, not of {identity.uri}")
        if public != certified:
            raise ConfigError(f"key and certificate in {self.own} do not belong together: copy the whole file")
        if found.expired:
            raise ConfigError(
                f"the certificate in {self.own} expired on {found.until:%Y-%m-%d}: `rhfedmtl network rotate` makes a "
                "new one"
            )
        _bytes(self.authorities)

    def pair(self) -> tuple[bytes, bytes]:
        """Key and certificate; a key that others can read is refused."""
        try:
            mode = self.own.stat().st_mode & 0o077
        except OSError as error:
            folder = self.own.parent.resolve()  # which node it is, only a folder next to the authority's tells
            node = f"{folder.parent} {folder.name}" if (folder.parent / "ca").is_dir() else "NETWORK NODE"
            way_out = f"`rhfedmtl network rotate {node}` writes one"
            raise ConfigError(f"no key {self.own}: {error.strerror}; {way_out}") from None
        if mode and os.name == "posix":
            raise ConfigError(f"{self.own} can be read by others: chmod 600 {self.own}")
        parts = re.findall(rb"-----BEGIN [^-]+-----.*?-----END [^-]+-----\n", _bytes(self.own), re.DOTALL)
        keys = [part for part in parts if b"PRIVATE KEY" in part]
        others = [part for part in parts if b"PRIVATE KEY" not in part]
        if len(keys) != 1 or not others:
            raise ConfigError(f"{self.own} must hold one private key and its certificate")
        return keys[0], b"".join(others)

    def sign(self, text: bytes) -> bytes:
        """Proof that a text is of this node: its certificate, and a signature."""
        secret, certificate = self.pair()
        key: Any = serialization.load_pem_private_key(secret, None)
        der = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
        return struct.pack("<H", len(der)) + der + bytes(key.sign(text, ec.ECDSA(hashes.SHA256())))

    def check_signed(self, identity: Identity, text: bytes, proof: bytes) -> None:
        """Refuse a text that this node did not sign, with a certificate that an authority trusted here made."""
        try:
            end = 2 + struct.unpack_from("<H", proof)[0]
            found = x509.load_der_x509_certificate(proof[2:end])
            peer = PeerCertificate.read(found.public_bytes(serialization.Encoding.PEM))
            _check_issued(found, _bytes(self.authorities))
            key: Any = found.public_key()
            key.verify(proof[end:], text, ec.ECDSA(hashes.SHA256()))
        except (ValueError, TypeError, AttributeError, struct.error, InvalidSignature) as error:
            raise PeerError(f"a proof of {identity} that is none: {error or type(error).__name__}") from None
        if peer.identity != identity or peer.expired:
            raise PeerError(f"a proof of {identity} by {peer.identity.uri}, valid until {peer.until:%Y-%m-%d}")

    def client(self) -> grpc.ChannelCredentials:
        """Credentials to call the node above."""
        return grpc.ssl_channel_credentials(_bytes(self.authorities), *self.pair())

    def server(self, *, callers_known: bool = True) -> grpc.ServerCredentials:
        """Credentials to be called by nodes below, with certificates only; new files are used for new connections."""
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self.fetcher(), callers_known)

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever one of the files does."""
        found = [path.stat() for path in (self.own, self.authorities) if path.exists()]
        return tuple(time for each in found for time in (each.st_mtime_ns, each.st_ctime_ns))

    def _configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([self.pair()], _bytes(self.authorities))

    def fetcher(self) -> Callable[[], Any]:
        """What a server asks for its credentials with: new ones once they are whole, None while nothing is new."""
        seen, identity = self.stamp(), self.peer.identity

        def fetch() -> Any:
            nonlocal seen
            now = self.stamp()
            if now == seen:
                return None
            try:
                self.check(identity)
                configuration = self._configuration()
            except RHFedMTLError:
                return None  # the old ones serve until the new ones are whole
            seen = now
            return configuration

        return fetch


def new_key() -> tuple[Any, bytes]:
    """A private key, and its PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _private_pem(key)


def certifies(certificate: bytes, request: bytes) -> bool:
    """Whether a certificate is for the key of a signing request."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    keys = x509.load_pem_x509_certificate(certificate).public_key(), requested_key(request)
    return keys[0].public_bytes(*form) == bytes(keys[1].public_bytes(*form))


def requested_key(request: bytes) -> Any:
    """The key of a signing request, whose sender holds it."""
    try:
        asked = x509.load_pem_x509_csr(request)
        key = asked.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PeerError(f"no certificate signing request: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PeerError("a signing request needs a key on the elliptic curve P-256")
    if not asked.is_signature_valid:
        raise PeerError("a signing request needs its own valid signature")
    return key


def signing_request(key: Any) -> bytes:
    """Request for a certificate for this key; who it is for is up to whoever signs."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rhfedmtl node")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def caller(auth_context: dict[str, Any]) -> PeerCertificate:
    """Who is at the other end of a connection to a server."""
    found = auth_context.get("x509_pem_cert")
    if not found:
        raise PeerError("a caller without a certificate")
    peer = PeerCertificate.read(found[0])
    if peer.expired:  # on a connection that was made before
        raise PeerError(f"the certificate of {peer.identity} has expired")
    return peer


def _check_issued(certificate: x509.Certificate, authorities: bytes) -> None:
    """Refuse a certificate that none of these authorities made."""
    for authority in x509.load_pem_x509_certificates(authorities):
        with suppress(ValueError, TypeError, InvalidSignature):
            return certificate.verify_directly_issued_by(authority)
    raise ValueError("no authority that is trusted here made its certificate")


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
