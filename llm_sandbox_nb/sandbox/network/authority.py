"""Certificate authority of a single sandbox, for the hosts of its secrets. Only programs in this sandbox trust it."""

from __future__ import annotations

import contextlib
import datetime
import re
import ssl
import tempfile
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)
_LIFETIME = 365 * _DAY
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


class Authority:
    """Authority that can sign certificates only for `hosts`. Its private key is never written to a file."""

    def __init__(self, hosts: Sequence[str]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self.hosts = tuple(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llm-sandbox-nb, of one sandbox")])
        builder = self._builder(self._name, self._key.public_key(), x509.BasicConstraints(True, 0))
        permitted = [x509.DNSName(host) for host in self.hosts]
        builder = builder.add_extension(x509.NameConstraints(permitted, None), critical=True)
        self._certificate = builder.sign(self._key, self._hash())
        self._contexts: dict[str, ssl.SSLContext] = {}

    @cached_property
    def pem(self) -> str:
        """The authority's certificate in PEM form, which programs in the sandbox trust."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._certificate.public_bytes(Encoding.PEM).decode("ascii")

    def java_truststore(self, password: str, site: Path | None = None) -> bytes:
        """Return the content of a PKCS #12 file with certificates, in the form that Java needs.

        They are the authority's own certificate, those of the package certifi, and those in the PEM file `site`.
        """
        import certifi
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        # Comments between certificates can be in any encoding.
        texts = [file.read_text("latin-1") for file in (Path(certifi.where()), site) if file]
        known = {}
        for pem in _PEM.findall("\n".join([self.pem, *texts])):
            with warnings.catch_warnings(), contextlib.suppress(ValueError):
                warnings.simplefilter("ignore")  # some authorities have serial numbers that RFC 5280 forbids
                known[pem] = x509.load_pem_x509_certificate(pem.encode())
        entries = [
            pkcs12.PKCS12Certificate(certificate, b"%d" % number)
            for number, certificate in enumerate(known.values())
        ]
        return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(password.encode()))

    def context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context with which the proxy poses as `host` to programs inside. It offers only HTTP/1.1."""
        if host not in self._contexts:
            self._contexts[host] = self._new_context(host)
        return self._contexts[host]

    def _new_context(self, host: str) -> ssl.SSLContext:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        if host not in self.hosts:
            raise ValueError(f"{host} is not a host of a secret.")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        builder = self._builder(name, key.public_key(), x509.BasicConstraints(False, None))
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = builder.add_extension(usage, critical=False).sign(self._key, self._hash())
        chain = certificate.public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with tempfile.TemporaryDirectory() as folder:  # `load_cert_chain` reads files only
            path = Path(folder, "key.pem")
            path.touch(0o600)
            path.write_bytes(private + chain)
            context.load_cert_chain(path)
        return context

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, constraints: x509.BasicConstraints
    ) -> x509.CertificateBuilder:
        from cryptography import x509

        now = datetime.datetime.now(datetime.UTC)
        own = self._key.public_key()
        signs = bool(constraints.ca)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _LIFETIME)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not signs,
                    key_cert_sign=signs,
                    crl_sign=signs,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )

    @staticmethod
    def _hash() -> hashes.SHA256:
        from cryptography.hazmat.primitives import hashes

        return hashes.SHA256()
