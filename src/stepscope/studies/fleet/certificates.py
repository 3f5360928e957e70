"""TLS of a fleet: an authority of its own and one certificate a host; who holds none cannot join, listen or send."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate
    from distributed.security import Security

CA, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
GATHERER = "gatherer"
_AUTHORITY_KEY = "ca-key.pem"
_LASTS = datetime.timedelta(days=825)
_BEFORE = datetime.timedelta(days=2)  # a board without a battery wakes with an old clock


def make(folder: Path, names: list[str]) -> None:
    """Authority and a folder with certificate and key for each name, where they are not there yet."""
    try:
        authority = _authority(folder)
        for name in (GATHERER, *names):
            if not (folder / name / KEY).exists():
                _issue(folder / name, name, *authority)
    except OSError as error:
        raise OutputNotWritable(f"cannot write certificates in '{folder}': {error.strerror}", "make room") from error


def security(folder: Path) -> Security:
    """What Dask needs to talk as the holder of this folder; UsageError where the material is missing or wrong."""
    from distributed.security import Security

    files = {name: folder / name for name in (CA, CERTIFICATE, KEY)}
    missing = [str(path) for path in files.values() if not path.exists()]
    if missing:
        raise UsageError(f"no TLS material: {', '.join(missing)}", "stepscope fleet up hosts.toml makes it")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(files[CA]))
        context.load_cert_chain(files[CERTIFICATE], files[KEY])
    except (ssl.SSLError, OSError) as error:
        said = f"the TLS material in '{folder}' cannot be used: {error}"
        raise UsageError(said, "remove the folder; stepscope fleet up hosts.toml makes it anew") from error
    ends = {
        f"tls_{end}_{what}": str(files[name])
        for end in ("scheduler", "worker", "client")
        for what, name in (("cert", CERTIFICATE), ("key", KEY))
    }
    made: Any = Security  # it has no types
    protection: Security = made(tls_ca_file=str(files[CA]), require_encryption=True, **ends)
    return protection


def _authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (folder / _AUTHORITY_KEY).exists():
        try:
            key = load_pem_private_key((folder / _AUTHORITY_KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        except (ValueError, FileNotFoundError) as error:
            said = f"the authority in '{folder}' cannot be read: {error}"
            raise UsageError(said, "remove the folder: stepscope fleet up makes it anew") from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("Stepscope fleet")
    constraint = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _begun(name, name, key).add_extension(constraint, critical=True).sign(key, _hash())
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / CA, _pem(certificate))
    _write(folder / _AUTHORITY_KEY, _pem_of_key(key))
    return certificate, key


def _issue(folder: Path, name: str, authority: Certificate, signer: EllipticCurvePrivateKey) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begun(_named(name), authority.subject, key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, _hash())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / CA, _pem(authority))
    _write(folder / CERTIFICATE, _pem(certificate))
    _write(folder / KEY, _pem_of_key(key))


def _begun(subject: Any, issuer: Any, key: EllipticCurvePrivateKey) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _LASTS)
    )


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Readable by its owner alone from its first byte."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
