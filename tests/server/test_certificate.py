"""
Certificates: our own satisfy clients, and a user's bad one is refused in TLS's own words.
"""

import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import NameOID

from server.certificate import (
    CertificateError,
    PrivateKey,
    ServerCertificate,
    load_certificate,
    make_certificate,
)

NOW = dt.datetime.now(dt.UTC)
CLIENT_ADDRESS = ("127.0.0.1", 1)
SERVER_ADDRESS = ("127.0.0.1", 2)


def sign(
    name: str,
    key: PrivateKey,
    *,
    issuer: tuple[x509.Certificate, PrivateKey] | None = None,
    alternative_names: tuple[x509.GeneralName, ...] = (x509.DNSName("server.test"),),
    is_authority: bool = False,
    until: dt.datetime = NOW + dt.timedelta(days=1),
) -> x509.Certificate:
    """
    A certificate of one's own making, with whatever fault a test asks for.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(days=2))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if alternative_names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(list(alternative_names)), critical=False
        )
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256())


def dump(
    directory: Path, certificates: list[x509.Certificate], key: PrivateKey | dsa.DSAPrivateKey
) -> tuple[Path, Path]:
    """
    Write a certificate file and a key file as users have them.
    """
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    certificate_path.write_bytes(
        b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)
    )
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path


def shake_hands(certificate: ServerCertificate, *, server_name: str) -> str:
    """
    Let an aioquic client that trusts `trust_pem` meet a server with the certificate.

    Returns "" when both complete the handshake, else the reason the client gave.
    """
    client_configuration = QuicConfiguration(
        alpn_protocols=["perf"],
        cadata=certificate.trust_pem.encode(),
        server_name=server_name,
    )
    client = QuicConnection(configuration=client_configuration)
    server_configuration = QuicConfiguration(alpn_protocols=["perf"], is_client=False)
    certificate.apply(server_configuration)
    server = QuicConnection(
        configuration=server_configuration,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    now_s = 0.0
    client.connect(SERVER_ADDRESS, now=now_s)
    for _ in range(20):
        now_s += 0.01
        for data, _ in client.datagrams_to_send(now=now_s):
            server.receive_datagram(data, CLIENT_ADDRESS, now=now_s)
        for data, _ in server.datagrams_to_send(now=now_s):
            client.receive_datagram(data, SERVER_ADDRESS, now=now_s)
    assert client._close_event is None or client._close_event.reason_phrase
    if client._close_event is not None:
        return str(client._close_event.reason_phrase)
    events = {type(event) for event in iter(client.next_event, None)}
    assert HandshakeCompleted in events
    return ""


@pytest.mark.parametrize("server_name", ["server.quiclab", "127.0.0.1", "::1", "192.0.2.7"])
def test_made_certificate_satisfies_a_verifying_client_by_name_and_address(
    server_name: str,
) -> None:
    """
    A client that trusts `trust_pem` completes the handshake by every name and address.
    """
    certificate = make_certificate(server_name="server.quiclab", addresses=["192.0.2.7"], now=NOW)

    assert shake_hands(certificate, server_name=server_name) == ""


def test_made_certificate_is_refused_under_another_name() -> None:
    """
    A client that asks for a name that is not in the certificate says so.
    """
    certificate = make_certificate(server_name="server.quiclab", addresses=[], now=NOW)

    assert "doesn't match" in shake_hands(certificate, server_name="elsewhere.example")


def test_made_certificate_lists_each_name_once_and_no_unspecified_address() -> None:
    """
    Binding 0.0.0.0 or naming an address twice leaves no odd or double entry.
    """
    certificate = make_certificate(
        server_name="127.0.0.1", addresses=["0.0.0.0", "::", "192.0.2.7", "192.0.2.7"], now=NOW
    )

    names = certificate.certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value
    assert [one.value for one in names] == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("192.0.2.7"),
        "localhost",
        ipaddress.ip_address("::1"),
    ]


def test_make_certificate_refuses_a_name_that_is_not_ascii() -> None:
    """
    A name that cannot stand in a certificate is told with the name and the way out.
    """
    with pytest.raises(CertificateError, match=r"--server-name bücher\.example .*xn--"):
        make_certificate(server_name="bücher.example", addresses=[], now=NOW)


def test_load_certificate_takes_what_make_certificate_made(tmp_path: Path) -> None:
    """
    A certificate that went through files still satisfies a verifying client.
    """
    made = make_certificate(server_name="server.quiclab", addresses=[], now=NOW)
    paths = dump(tmp_path, [made.certificate], made.private_key)

    loaded = load_certificate(*paths, now=NOW)

    assert loaded.certificate == made.certificate
    assert loaded.server_name == "server.quiclab"


def test_load_certificate_trusts_the_root_that_stands_in_the_file(tmp_path: Path) -> None:
    """
    A chain that brings its root is enough for a client, without another file.
    """
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = sign("root", root_key, is_authority=True, alternative_names=())
    leaf = sign("leaf", key, issuer=(root, root_key))

    loaded = load_certificate(*dump(tmp_path, [leaf, root], key), now=NOW)

    assert x509.load_pem_x509_certificates(loaded.trust_pem.encode()) == [root]
    assert shake_hands(loaded, server_name="server.test") == ""


def test_load_certificate_names_the_server_of_a_wildcard(tmp_path: Path) -> None:
    """
    Of `*.example.test` a name is told that a client can really ask for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = sign("leaf", key, alternative_names=(x509.DNSName("*.example.test"),))

    loaded = load_certificate(*dump(tmp_path, [leaf], key), now=NOW)

    assert loaded.server_name == "server.example.test"
    assert shake_hands(loaded, server_name=loaded.server_name) == ""


def test_load_certificate_refuses_one_without_subject_alternative_name(tmp_path: Path) -> None:
    """
    No subjectAltName: refused with TLS's reason and the openssl option that adds one.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    paths = dump(tmp_path, [sign("leaf", key, alternative_names=())], key)

    with pytest.raises(CertificateError, match=r"no subjectAltName.*bad_certificate.*-addext"):
        load_certificate(*paths, now=NOW)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        pytest.param(NOW + dt.timedelta(days=2), "CN=leaf expired on", id="expired"),
        pytest.param(NOW - dt.timedelta(days=9), "CN=leaf is not valid before", id="not-yet"),
    ],
)
def test_load_certificate_refuses_one_that_is_not_valid_now(
    tmp_path: Path, now: dt.datetime, words: str
) -> None:
    """
    Expired or not valid yet: refused with the date and TLS's alert.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    paths = dump(tmp_path, [sign("leaf", key)], key)

    with pytest.raises(CertificateError, match=rf"{words} \d{{4}}-.*certificate_expired"):
        load_certificate(*paths, now=now)


def test_load_certificate_refuses_an_expired_link_of_the_chain(tmp_path: Path) -> None:
    """
    A valid certificate below an expired authority is refused, and the authority is named.
    """
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = sign("old root", root_key, is_authority=True, until=NOW - dt.timedelta(days=1))
    paths = dump(tmp_path, [sign("leaf", key, issuer=(root, root_key)), root], key)

    with pytest.raises(CertificateError, match="CN=old root expired"):
        load_certificate(*paths, now=NOW)


def test_load_certificate_refuses_the_key_of_another_certificate(tmp_path: Path) -> None:
    """
    A key that does not belong to the certificate is told before any client calls.
    """
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    paths = dump(tmp_path, [sign("leaf", key)], other)

    with pytest.raises(CertificateError, match="is not the key of --certificate"):
        load_certificate(*paths, now=NOW)


def test_load_certificate_refuses_a_kind_of_key_that_tls_cannot_use(tmp_path: Path) -> None:
    """
    A DSA key is refused by its kind.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    paths = dump(tmp_path, [sign("leaf", key)], dsa.generate_private_key(1024))

    with pytest.raises(CertificateError, match=r"DSAPrivateKey, with which TLS 1.3 cannot sign"):
        load_certificate(*paths, now=NOW)


def test_load_certificate_names_the_file_that_is_missing_or_not_pem(tmp_path: Path) -> None:
    """
    Absent files and files of another form are told by option and path.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate_path, key_path = dump(tmp_path, [sign("leaf", key)], key)
    absent, wrong = tmp_path / "absent.pem", tmp_path / "wrong.pem"
    wrong.write_text("not PEM\n")

    for path, words in ((absent, "No such file"), (wrong, "holds no certificate")):
        with pytest.raises(CertificateError, match=f"--certificate .*{path.name}.*{words}"):
            load_certificate(path, key_path, now=NOW)
    for path, words in ((absent, "No such file"), (wrong, "holds no private key")):
        with pytest.raises(CertificateError, match=f"--private-key .*{path.name}.*{words}"):
            load_certificate(certificate_path, path, now=NOW)


def test_load_certificate_asks_for_a_key_without_password(tmp_path: Path) -> None:
    """
    An encrypted key is told as such, with the command that decrypts it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate_path, key_path = dump(tmp_path, [sign("leaf", key)], key)
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    with pytest.raises(CertificateError, match=r"has a password.*openssl pkey"):
        load_certificate(certificate_path, key_path, now=NOW)


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    """
    One RSA-4096 key for every link: making one takes seconds, and size is what matters here.
    """
    return rsa.generate_private_key(public_exponent=65537, key_size=4096)


def make_chain(key: rsa.RSAPrivateKey, count: int) -> list[x509.Certificate]:
    """
    A chain of RSA-4096 certificates, the server's first, the root last.
    """
    chain = [sign("root", key, is_authority=True, alternative_names=())]
    for index in range(count - 2):
        name = f"link {index}"
        chain.append(
            sign(name, key, issuer=(chain[-1], key), is_authority=True, alternative_names=())
        )
    chain.append(sign("leaf", key, issuer=(chain[-1], key)))
    return chain[::-1]


@pytest.mark.slow
def test_chain_of_five_rsa_4096_certificates_completes_the_handshake(
    tmp_path: Path, rsa_key: rsa.RSAPrivateKey
) -> None:
    """
    A handshake of several times the anti-amplification limit still completes.
    """
    loaded = load_certificate(*dump(tmp_path, make_chain(rsa_key, 5), rsa_key), now=NOW)

    assert len(loaded.chain) == 4
    assert shake_hands(loaded, server_name="server.test") == ""


@pytest.mark.slow
def test_load_certificate_refuses_a_chain_that_aioquic_cannot_send(
    tmp_path: Path, rsa_key: rsa.RSAPrivateKey
) -> None:
    """
    A chain larger than aioquic's handshake buffer is refused with its size at start.
    """
    paths = dump(tmp_path, make_chain(rsa_key, 14), rsa_key)

    with pytest.raises(CertificateError, match=r"chain of 14 certificates and \d+ bytes"):
        load_certificate(*paths, now=NOW)
