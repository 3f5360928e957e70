"""Certificates of a fleet: one authority, a role in each certificate, keys that stay on their machine, signed results.

ca.pem, ca-key.pem                 the authority, on the machine that gathers
scheduler/, gatherer/              ca.pem, certificate.pem and key.pem of each
devices/NAME/certificate.pem       the one certificate that the device of this name is admitted with
devices/NAME/revoked               there instead: no device of this name is admitted
"""

from __future__ import annotations

import datetime
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import FleetError, OutputNotWritable, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

CA, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
_NEXT_KEY = "next-key.pem"  # of a device, until it has a certificate of it
GATHERER, SCHEDULER, DEVICE = "gatherer", "scheduler", "device"
_AUTHORITY_KEY, _REVOKED = "ca-key.pem", "revoked"
_AUTHORITY_LASTS = datetime.timedelta(days=1825)
_LASTS = datetime.timedelta(days=365)
_RENEWED = datetime.timedelta(days=60)  # before its end, by `fleet up`
_BEFORE = datetime.timedelta(days=2)  # a board without a battery wakes with an old clock
_URI = re.compile(r"stepscope:(scheduler|gatherer|device)(?:/([A-Za-z0-9._-]{1,63})/([A-Za-z0-9._-]{1,63}))?")


class NotAdmitted(FleetError):
    """A certificate that is revoked, expired, of another authority, or of another role."""


@dataclass(frozen=True)
class Identity:
    """The holder of a certificate: its role, and the name and board of a device (else empty)."""

    role: str
    name: str = ""
    board: str = ""

    @property
    def uri(self) -> str:
        """Return it as certificates hold it."""
        return f"stepscope:{self.role}" + (f"/{self.name}/{self.board}" if self.role == DEVICE else "")


def make_certificates(folder: Path, rotate: bool = False) -> bool:
    """Make the authority, and certificates of scheduler and gatherer, where they are not there or end soon.

    rotate: all of them anew, so that no earlier certificate is worth anything. Returns whether the scheduler's is new.
    """
    try:
        if rotate:
            (folder / CA).unlink(missing_ok=True)
        authority = _load_or_make_authority(folder)
        new = [
            role
            for role in (SCHEDULER, GATHERER)
            if not _is_current_certificate(folder / role, Identity(role), authority[0])
        ]
        for role in new:
            key = _generate_key()
            _write_private_file(folder / role / KEY, _pem_of_key(key))
            _write_private_file(
                folder / role / CERTIFICATE, _issue_certificate(Identity(role), key.public_key(), *authority)
            )
            _write_private_file(folder / role / CA, (folder / CA).read_bytes())
    except OSError as error:
        raise OutputNotWritable(f"cannot write certificates in '{folder}': {error.strerror}", "make room") from error
    return SCHEDULER in new


def issue_or_reuse_certificate(folder: Path, device: Identity, public_key: str) -> str:
    """Return the certificate of a device's public key (PEM both): the one that it has, or a new one in its place.

    NotAdmitted where the device was revoked.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    own = folder / "devices" / device.name
    if (own / _REVOKED).exists():
        raise NotAdmitted(f"{device.name} was revoked", f"to admit it again, remove '{own / _REVOKED}'")
    try:
        key = load_pem_public_key(public_key.encode("ascii"))
    except ValueError as error:
        raise NotAdmitted(f"{device.name} sent no public key: {error}", "look at the device") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NotAdmitted(f"{device.name} sent a key of another kind", "look at the device")
    authority, signer = _load_or_make_authority(folder)
    if _is_current_certificate(own, device, authority):
        stated = _read_certificate(own / CERTIFICATE).public_key()
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if stated.public_bytes(*form) == key.public_bytes(*form):
            return (own / CERTIFICATE).read_text(encoding="ascii")
    _write_private_file(own / CERTIFICATE, _issue_certificate(device, key, authority, signer))
    return (own / CERTIFICATE).read_text(encoding="ascii")


def revoke(folder: Path, name: str) -> bool:
    """Admit no device of this name any more; whether one was. The scheduler ends its connection within seconds."""
    own = folder / "devices" / name
    try:
        own.mkdir(parents=True, exist_ok=True)
        (own / _REVOKED).touch()
        had_certificate = (own / CERTIFICATE).exists()
        (own / CERTIFICATE).unlink(missing_ok=True)
    except OSError as error:
        raise OutputNotWritable(f"cannot write in '{own}': {error.strerror}", "make room") from error
    return had_certificate


def device_public_key(folder: Path, rotate: bool = False) -> str:
    """Return the public key (PEM) of this device; its private key is made here and stays here.

    rotate: of a new key, which replaces the one in use when its certificate comes.
    """
    if rotate or not (folder / KEY).exists():
        _write_private_file(folder / (_NEXT_KEY if rotate else KEY), _pem_of_key(_generate_key()))
    return _public_key_of(folder / (_NEXT_KEY if rotate else KEY))


def _public_key_of(path: Path) -> str:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return _pem_of_public_key(load_pem_private_key(path.read_bytes(), None).public_key())


def _pem_of_public_key(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return str(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii"))


def keep_certificate(folder: Path, authority: str, certificate: str) -> None:
    """Write what a device was sent beside its key (PEM both), and take the next key where it is of that one."""
    from cryptography import x509

    holder_key = _pem_of_public_key(x509.load_pem_x509_certificate(certificate.encode("ascii")).public_key())
    if (folder / _NEXT_KEY).exists() and _public_key_of(folder / _NEXT_KEY) == holder_key:
        (folder / _NEXT_KEY).replace(folder / KEY)
    _write_private_file(folder / CA, authority.encode("ascii"))
    _write_private_file(folder / CERTIFICATE, certificate.encode("ascii"))


def tls_context(folder: Path, server: bool = False) -> ssl.SSLContext:
    """Return TLS 1.3 as the holder of this folder, which takes certificates of its own authority alone.

    UsageError where the material is missing or wrong.
    """
    files = {name: folder / name for name in (CA, CERTIFICATE, KEY)}
    missing = [str(path) for path in files.values() if not path.exists()]
    if missing:
        raise UsageError(f"no TLS material: {', '.join(missing)}", "stepscope fleet up hosts.toml makes it")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cafile=str(files[CA]))
        context.load_cert_chain(files[CERTIFICATE], files[KEY])
    except (ssl.SSLError, OSError) as error:
        text = f"the TLS material in '{folder}' cannot be used: {error}"
        raise UsageError(text, "remove the folder; stepscope fleet up hosts.toml makes it anew") from error
    return context


def verify_peer(folder: Path, der: bytes) -> Identity:
    """Return the holder of a certificate that a TLS peer has shown; NotAdmitted unless it is the one we issued last."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate = x509.load_der_x509_certificate(der)
    holder = _identity_of_certificate(certificate)
    own = folder / "devices" / holder.name if holder.role == DEVICE else folder / holder.role
    try:
        latest = _read_certificate(own / CERTIFICATE).public_bytes(Encoding.DER)
    except (OSError, ValueError):
        latest = b""
    if latest != der:
        raise NotAdmitted(f"the certificate of {holder.name or holder.role} is revoked or replaced")
    if not _is_valid_now(certificate):
        raise NotAdmitted(f"the certificate of {holder.name or holder.role} has expired")
    return holder


def sign(folder: Path, content: bytes) -> bytes:
    """Return the signature of the holder of this folder: ECDSA, P-256, SHA-256."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key((folder / KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(content, ec.ECDSA(_sha256()))


def verify_signature(authority: Path, certificate: str, signature: bytes, content: bytes) -> Identity:
    """Return who signed a content; NotAdmitted where the signature or the certificate (PEM) does not hold."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        x509_certificate = x509.load_pem_x509_certificate(certificate.encode("ascii"))
        x509_certificate.verify_directly_issued_by(_read_certificate(authority))
        key = x509_certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("a key of another kind")
        key.verify(signature, content, ec.ECDSA(_sha256()))
        holder = _identity_of_certificate(x509_certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise NotAdmitted(f"the signature does not hold: {error or 'it is of another key or content'}") from error
    if not _is_valid_now(x509_certificate):
        raise NotAdmitted(f"the certificate of {holder.name or holder.role} has expired")
    return holder


def _identity_of_certificate(certificate: Certificate) -> Identity:
    """The holder, from the one URI of the certificate."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        raise NotAdmitted("the certificate names no role") from None
    match = _URI.fullmatch(uri)
    if match is None or (match[1] == DEVICE) != (match[2] is not None):
        raise NotAdmitted("the certificate names no role")
    return Identity(match[1], match[2] or "", match[3] or "")


def _load_or_make_authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (folder / CA).exists():
        try:
            certificate = _read_certificate(folder / CA)
            key = load_pem_private_key((folder / _AUTHORITY_KEY).read_bytes(), None)
        except (ValueError, FileNotFoundError) as error:
            text = f"the authority in '{folder}' cannot be read: {error}"
            raise UsageError(text, "remove the folder: stepscope fleet up makes it anew") from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        if _is_valid_now(certificate, _RENEWED):
            return certificate, key
    key, name = _generate_key(), _x509_name("Stepscope fleet")
    builder = _certificate_builder(name, name, key.public_key(), _AUTHORITY_LASTS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _write_private_file(folder / _AUTHORITY_KEY, _pem_of_key(key))
    _write_private_file(folder / CA, _pem_of_certificate(builder.sign(key, _sha256())))
    return _read_certificate(folder / CA), key


def _issue_certificate(holder: Identity, key: Any, authority: Certificate, signer: EllipticCurvePrivateKey) -> bytes:
    """The certificate (PEM) of a public key. Its use keeps a device from being taken for a scheduler (RFC 5280)."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    server = holder.role == SCHEDULER
    names: list[Any] = [x509.UniformResourceIdentifier(holder.uri), *([x509.DNSName(SCHEDULER)] if server else [])]
    use = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _certificate_builder(_x509_name(holder.name or holder.role), authority.subject, key, _LASTS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return _pem_of_certificate(builder.sign(signer, _sha256()))


def _certificate_builder(subject: Any, issuer: Any, key: Any, lasts: datetime.timedelta) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_utc_now() - _BEFORE)
        .not_valid_after(_utc_now() + lasts)
    )


def _is_current_certificate(folder: Path, holder: Identity, authority: Certificate) -> bool:
    """Return whether the certificate of a folder is this holder's, of this authority, and does not end soon."""
    try:
        certificate = _read_certificate(folder / CERTIFICATE)
        certificate.verify_directly_issued_by(authority)
        return _identity_of_certificate(certificate) == holder and _is_valid_now(certificate, _RENEWED)
    except Exception:  # none, an earlier version's, another authority's: there is a new one then
        return False


def _is_valid_now(certificate: Certificate, least: datetime.timedelta = datetime.timedelta(0)) -> bool:
    return certificate.not_valid_before_utc <= _utc_now() <= certificate.not_valid_after_utc - least


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _read_certificate(path: Path) -> Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def _generate_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _x509_name(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem_of_certificate(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private_file(path: Path, content: bytes) -> None:
    """Readable by its owner alone from its first byte; a reader sees the old or the new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)
