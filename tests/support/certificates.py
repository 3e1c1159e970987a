"""Certificates for servers on loopback: an authority of one's own, and what it signs, as PEM files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """A certificate that signs others. Clients are given `file`."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("authority")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        made = _builder(name, name, key).add_extension(basic, critical=True).sign(key, hashes.SHA256())
        (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, made)

    @property
    def file(self) -> str:
        return str(self.folder / "ca.pem")

    def sign(self, name: str) -> tuple[str, str]:
        """The files of a certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        built = _builder(_named(name), self.certificate.subject, key).add_extension(here, critical=False)
        made = built.sign(self.key, hashes.SHA256())
        certificate, kept = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        kept.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return str(certificate), str(kept)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    today = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    built = built.serial_number(x509.random_serial_number())
    return built.not_valid_before(today - timedelta(days=1)).not_valid_after(today + timedelta(days=2))
