"""
The server's certificate: one made at start, or the user's own, checked before use.

A certificate that clients would refuse is refused here already, in the words of
TLS, because a failed handshake minutes later tells less and costs more.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = (
    ec.EllipticCurvePrivateKey
    | rsa.RSAPrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)
"""The kinds of key that aioquic can sign with."""

VALIDITY: Final = dt.timedelta(days=365)
CLOCK_SKEW: Final = dt.timedelta(days=1)
# aioquic 1.7.2 builds the handshake in a buffer of 16,384 bytes (CRYPTO_BUFFER_SIZE)
# and fails in the middle of a handshake when it overflows. 1,384 bytes are left for
# the extensions, the signature (512 with RSA-4096) and the Finished message.
LARGEST_CHAIN_BYTES: Final = 15_000

_AUTHORITY_NAME: Final = "quiclab authority of one run"
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class CertificateError(Exception):
    """A certificate or key cannot serve; one line says which, why, and what to do (exit 2)."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """
    What the server proves itself with.

    Args:
        certificate: The server's own.
        chain: Those that lead to the root, nearest first.
        private_key: Of `certificate`.
        server_name: A name or address that the certificate covers.
        trust_pem: What a client needs as its CA file.
        is_own: Made for this process, and for nothing else.
    """

    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    private_key: PrivateKey
    server_name: str
    trust_pem: str
    is_own: bool = False

    def describe(self) -> dict[str, Any]:
        """
        As it stands in the server's description.
        """
        certificate = self.certificate
        key = self.private_key
        kind = type(key).__name__.lstrip("_").removesuffix("PrivateKey")
        return {
            "subject": certificate.subject.rfc4514_string(),
            "issuer": certificate.issuer.rfc4514_string(),
            "is_own": self.is_own,
            "key": f"{kind} {key.key_size} bits" if hasattr(key, "key_size") else kind,
            "not_before": certificate.not_valid_before_utc.isoformat(),
            "not_after": certificate.not_valid_after_utc.isoformat(),
            "chain_count": 1 + len(self.chain),
        }

    def apply(self, configuration: QuicConfiguration) -> None:
        """
        Let an aioquic server use it.
        """
        configuration.certificate = self.certificate
        configuration.certificate_chain = list(self.chain)
        configuration.private_key = self.private_key


def make_certificate(
    *, server_name: str, addresses: Iterable[str], now: dt.datetime
) -> ServerCertificate:
    """
    Make a certificate, and the authority that signs it, for one run.

    Two certificates, not one that signs itself, because some clients (rustls) take
    no server certificate that is an authority, and others (OpenSSL) no authority
    that is none. The authority's key is dropped.

    Args:
        server_name: A host name or IP address; clients that verify ask for it.
        addresses: IP addresses it is valid for too. Unspecified ones (0.0.0.0) are skipped.
        now: Current time, with its zone.

    Raises:
        CertificateError: The name cannot stand in a certificate.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign_authority(authority_key, now=now)
    private_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begin_certificate("quiclab server", now=now)
        .issuer_name(authority.subject)
        .public_key(private_key.public_key())
        .add_extension(
            x509.SubjectAlternativeName(_alternative_names(server_name, addresses)),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return ServerCertificate(
        certificate=certificate,
        chain=(),
        private_key=private_key,
        server_name=server_name,
        trust_pem=_render_pem([authority]),
        is_own=True,
    )


def load_certificate(
    certificate_path: Path, private_key_path: Path, *, now: dt.datetime
) -> ServerCertificate:
    """
    Load a user's certificate (its chain after it in the same file) and its key, both PEM.

    Args:
        certificate_path: The server's certificate first, then those up to the root.
        private_key_path: Its key, without a password.
        now: Current time, with its zone.

    Raises:
        CertificateError: A file cannot be read, the two do not belong together, or
            clients would refuse them: no subjectAltName, not valid now, chain too large.
    """
    certificates = _load_certificates(certificate_path)
    private_key = _load_private_key(private_key_path)
    certificate = certificates[0]
    if certificate.public_key() != private_key.public_key():
        raise CertificateError(
            f"--private-key {private_key_path} is not the key of --certificate {certificate_path}; "
            "the server's own certificate comes first in that file"
        )
    _check_dates(certificates, certificate_path, now=now)
    names = _find_names(certificate, certificate_path)
    chain_bytes = sum(len(_to_der(one)) for one in certificates)
    if chain_bytes > LARGEST_CHAIN_BYTES:
        raise CertificateError(
            f"--certificate {certificate_path} is a chain of {len(certificates)} certificates and "
            f"{chain_bytes} bytes, and aioquic's handshake holds {LARGEST_CHAIN_BYTES}; "
            "leave the root out, or use smaller keys (TLS: internal_error, alert 80)"
        )
    roots = [one for one in certificates if _is_root(one)]
    return ServerCertificate(
        certificate=certificate,
        chain=tuple(certificates[1:]),
        private_key=private_key,
        server_name=names[0].replace("*", "server", 1),
        trust_pem=_render_pem(roots or certificates),
    )


def _begin_certificate(common_name: str, *, now: dt.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_to_name(common_name))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _to_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _sign_authority(key: ec.EllipticCurvePrivateKey, *, now: dt.datetime) -> x509.Certificate:
    return (
        _begin_certificate(_AUTHORITY_NAME, now=now)
        .issuer_name(_to_name(_AUTHORITY_NAME))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _alternative_names(server_name: str, addresses: Iterable[str]) -> list[x509.GeneralName]:
    """
    The names of a certificate, each once, the server's own first.
    """
    names: list[x509.GeneralName] = []
    for text in dict.fromkeys((server_name, *addresses, *_LOOPBACK_NAMES)):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            try:
                names.append(x509.DNSName(text))
            except ValueError as error:
                raise CertificateError(
                    f"--server-name {text} is no host name for a certificate; "
                    "write it in ASCII (IDNA: xn--...)"
                ) from error
        else:
            if not address.is_unspecified:
                names.append(x509.IPAddress(address))
    return names


def _load_certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"--certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise CertificateError(
            f"--certificate {path} holds no certificate in PEM form "
            f"(-----BEGIN CERTIFICATE-----): {error}"
        ) from error


def _load_private_key(path: Path) -> PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise CertificateError(f"--private-key {path}: {error.strerror}") from error
    except TypeError as error:
        raise CertificateError(
            f"--private-key {path} has a password; give a key without one "
            "(openssl pkey -in KEY -out PLAIN)"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(
            f"--private-key {path} holds no private key in PEM form: {error}"
        ) from error
    if not isinstance(key, PrivateKey):
        raise CertificateError(
            f"--private-key {path} is a {type(key).__name__}, with which TLS 1.3 cannot sign; "
            "use an elliptic curve, RSA or Ed25519 key"
        )
    return key


def _check_dates(certificates: Sequence[x509.Certificate], path: Path, *, now: dt.datetime) -> None:
    for certificate in certificates:
        subject = certificate.subject.rfc4514_string() or "without a subject"
        if now > certificate.not_valid_after_utc:
            raise CertificateError(
                f"--certificate {path}: {subject} expired on "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and clients refuse it "
                "(TLS: certificate_expired, alert 45); renew it"
            )
        if now < certificate.not_valid_before_utc:
            raise CertificateError(
                f"--certificate {path}: {subject} is not valid before "
                f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and clients refuse it "
                "(TLS: certificate_expired, alert 45); set this machine's clock, or wait"
            )


def _find_names(certificate: x509.Certificate, path: Path) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
        names += [str(one) for one in extension.value.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        names = []
    except ValueError as error:
        raise CertificateError(f"--certificate {path} is damaged: {error}") from error
    if not names:
        raise CertificateError(
            f"--certificate {path} has no subjectAltName, the only place where clients look for "
            "the server's name (TLS: bad_certificate, alert 42); make one with it "
            "(openssl req -addext subjectAltName=DNS:NAME,IP:ADDRESS)"
        )
    return names


def _is_root(certificate: x509.Certificate) -> bool:
    """
    Whether it signed itself.
    """
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _to_der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _render_pem(certificates: Iterable[x509.Certificate]) -> str:
    return "".join(
        one.public_bytes(serialization.Encoding.PEM).decode("ascii") for one in certificates
    )
