"""The files of a federation: certificates, keys, a folder for each site.

    federation.toml         address of the server, names of the sites in the order of their numbers
    run.toml                what is learned and how
    server/                 stays with the operator: ca.key, server.crt, server.key, secret, sites' public keys
    sites/NAME/             goes to the site: site.toml, link.toml, ca.crt, key.pem, README.md
    app/                    the Flower app that a run is submitted as

The certificate authority is the federation's own. A site trusts this authority alone, and the server works with the listed
keys alone. Private keys are readable by their owner only.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsaddle.deploy.program import STOCK_INTERVAL
from fedsaddle.errors import FedsaddleError
from fedsaddle.keys import checked, keys_of
from fedsaddle.parse import read_toml
from fedsaddle.toml import to_toml

VALID_DAYS = 3 * 365
_CURVE = ec.SECP256R1()  # every message of a site is signed, and this is the fastest to verify
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")


@dataclass(frozen=True)
class Manifest:
    """What federation.toml holds.

    Args:
        address: host:port where sites reach the server.
        listen: address that the server listens on; the address's own host unless given.
        sites: names, in the order of their numbers.
    """

    address: str
    sites: Sequence[str]
    listen: str | None = None


@dataclass(frozen=True)
class Home:
    """A federation's folder, at its operator."""

    folder: Path

    @cached_property
    def manifest(self) -> Manifest:
        path = self.folder / "federation.toml"
        if not path.is_file():
            raise FedsaddleError(
                f"{self.folder}: is no federation (no federation.toml); try: fedsaddle deploy init"
            )
        return Manifest(**checked(read_toml(path), keys_of(Manifest), f"{path}: ", "federation.toml"))

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def certificate(self) -> bytes:
        """The federation's own authority, PEM."""
        return (self.server / "ca.crt").read_bytes()

    @property
    def port(self) -> int:
        return int(self.manifest.address.rpartition(":")[2])

    @property
    def local(self) -> str:
        """The address by which the server's own programs reach it."""
        host = self.manifest.listen or self.manifest.address.rpartition(":")[0]
        return f"{'127.0.0.1' if host in ('0.0.0.0', 'localhost') else host}:{self.port}"

    def public_keys(self) -> dict[str, bytes]:
        """The sites' public keys, PEM, in the order of their numbers."""
        return {name: (self.server / "keys" / f"{name}.pub").read_bytes() for name in self.manifest.sites}

    def site(self, name: str) -> Path:
        """The folder that goes to a site."""
        return self.folder / "sites" / name


@dataclass(frozen=True)
class LinkFile:
    """What a site's link.toml holds.

    Args:
        address: host:port of the server.
        certificate: the federation's authority, a file beside link.toml.
        key: the site's private key, likewise.
        interval: seconds between two looks for work; below Flower's own 3 the pause of its SuperNode is cut short.
    """

    address: str
    certificate: str = "ca.crt"
    key: str = "key.pem"
    interval: float = STOCK_INTERVAL

    @staticmethod
    def load(path: Path) -> LinkFile:
        if not path.is_file():
            raise FedsaddleError(f"{path} is not there: the federation's operator sends it with site.toml")
        file = LinkFile(**checked(read_toml(path), keys_of(LinkFile), f"{path}: ", "link.toml"))
        if not _ADDRESS.fullmatch(file.address):
            raise FedsaddleError(f"{path}: address must be host:port, got {file.address!r}")
        if not 0 < file.interval <= 60:
            raise FedsaddleError(
                f"{path}: interval must be above 0 and at most 60 seconds, got {file.interval}"
            )
        return replace(file, certificate=str(path.parent / file.certificate), key=str(path.parent / file.key))


def create(folder: Path, sites: Sequence[str], address: str, listen: str | None = None) -> Home:
    """Make a new federation's files.

    Args:
        folder: new or empty.
        sites: their names, at least two.
        address: host:port where they will reach the server.
        listen: what the server binds to, such as 0.0.0.0; the address's host unless given.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FedsaddleError(f"{folder}: is not empty; choose a new folder")
    if len(sites) < 2:
        raise FedsaddleError(f"deploy init: a federation needs at least 2 sites, got {len(sites)}")
    for name in sites:
        if not _SITE.fullmatch(name):
            plain = _plain(name)
            hint = f"; try {plain!r}" if _SITE.fullmatch(plain) and plain not in sites else ""
            raise FedsaddleError(
                f"deploy init: a site's name is letters, digits, '.', '_' and '-', got {name!r}{hint}"
            )
    if twins := [name for i, name in enumerate(sites) if name in sites[:i]]:
        raise FedsaddleError(f"deploy init: two sites are called {twins[0]!r}; rename one of them")
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise FedsaddleError(
            f"deploy init: address must be host:port, such as fl.example.org:9092, got {address!r}"
        )
    home = Home(folder)
    (home.server / "keys").mkdir(parents=True)
    manifest: dict[str, Any] = {"address": address, "sites": list(sites)}
    (folder / "federation.toml").write_text(to_toml(manifest | ({"listen": listen} if listen else {})))
    (folder / "run.toml").write_text(_RUN)
    authority = certificates(
        home.server, {found[1].strip("[]"), "localhost", "127.0.0.1", *([listen] if listen else [])}
    )
    private(home.server / "secret", secrets.token_bytes(32))
    home.app.mkdir()
    (home.app / "pyproject.toml").write_text(_APP)
    (home.app / "app.py").write_text(_APP_PY)
    for name in sites:
        place = home.site(name)
        place.mkdir(parents=True)
        key = ec.generate_private_key(_CURVE)
        private(place / "key.pem", private_pem(key))
        (home.server / "keys" / f"{name}.pub").write_bytes(public_pem(key))
        (place / "ca.crt").write_bytes(authority)
        (place / "link.toml").write_text(to_toml({"address": address}))
        (place / "site.toml").write_text(_SITE_TOML.format(name=name))
        (place / "README.md").write_text(_INSTRUCTIONS.format(name=name, address=address))
    return home


def _plain(name: str) -> str:
    """A name with letters, digits, '.', '_' and '-' alone: of "St. Mary's" St.-Marys."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().replace("'", "")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip("._-")[:63]


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half, as Flower writes it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A site's private key, in the form that Flower's own SuperNode reads too."""
    form = serialization.PrivateFormat.OpenSSH
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's key from its file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise FedsaddleError(
            f"{path} is not there: the federation's operator sends it with site.toml"
        ) from None
    except (ValueError, TypeError) as error:
        raise FedsaddleError(f"{path}: is no private key ({error}); ask the federation's operator") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedsaddleError(f"{path}: must be an elliptic curve key; ask the federation's operator")
    return key


def certificates(folder: Path, hosts: set[str]) -> bytes:
    """An authority and the server's certificate by it, for these hosts; the authority's own as PEM."""
    authority, server = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedsaddle federation")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedsaddle server")])
    now = datetime.datetime.now(datetime.UTC)

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: Mapping[Any, bool]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        )
        for extension, critical in extensions.items():
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca = signed(by, authority, {x509.BasicConstraints(ca=True, path_length=0): True})
    names = x509.SubjectAlternativeName([_host(host) for host in sorted(hosts)])
    (folder / "ca.crt").write_bytes(ca)
    (folder / "server.crt").write_bytes(
        signed(own, server, {x509.BasicConstraints(ca=False, path_length=None): True, names: False})
    )
    private(folder / "ca.key", _pem(authority))
    private(folder / "server.key", _pem(server))
    return ca


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def private(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


_RUN = """\
[data]
sites = "federation.toml"   # each site is a client
quorum = 0.5                # a round counts if this share of the sites that were asked answer
timeout = 600.0             # seconds that a phase waits for them

[model]
name = "linear"
zero = true

[problem]
name = "auc"

[algorithm]
name = "codasca"
lr = 0.05
local_steps = 20

[train]
rounds = 50
batch_size = 32
eval_every = 5              # rounds: measuring at the sites takes two phases, most rounds of training one
"""

_SITE_TOML = """\
name = "{name}"

[data]
file = "data.csv"           # .csv, .parquet, .npz, LIBSVM text, or a folder of images with one sub-folder a class
label = "label"             # the column to predict
positive = "1"              # its value that counts as positive
scale = "standard"          # agreed over all sites
test = 0.2                  # share of the rows held out for testing, here at the site
# drop = ["patient_id"]     # columns that are not features
# impute = "mean"           # of a column over all sites, for its missing values, which are refused else
"""

_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedsaddle-run"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedsaddle"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""

_APP_PY = '''\
"""What a run is submitted to Flower as; the work is done by the fedsaddle that is installed at the server and the sites."""

from fedsaddle.deploy.app import client, server

__all__ = ["client", "server"]
'''

_INSTRUCTIONS = """\
# Site {name}: what its administrator does

You take part in a federation: a model is trained over several sites' data, and your rows never leave this site.

1. Install: Python 3.11 or later, then `pip install "fedsaddle[flower]"`.
2. Keep this folder on the machine that can read the data. `key.pem` is this site's identity: nobody else may read it.
3. Write into `site.toml` where the data are and which column is to be predicted.
4. Try it: `fedsaddle deploy check site.toml`. It says what is wrong in plain words, and lists what would leave the site.
5. Start it: `fedsaddle deploy site site.toml`, as a service that is started again when it stops. Stop it with Ctrl-C.

The site opens outgoing TLS connections to {address} alone. Two processes run here: Flower's SuperNode, which holds that
connection, and fedsaddle, which does the work; they speak over a port of 127.0.0.1, with TLS, and a certificate and a
secret made at each start. The site runs only the fedsaddle that you installed, and a model or method of one's own only if
`modules` in `site.toml` names it. What the SuperNode says stands in `supernode.log`.

What leaves the site: at set-up the number of rows, means and deviations of columns (with gaps filled also how many rows
have a value; scaled by unit or symmetric also the smallest and largest value), the categories that are not rare, and
counts of the label; in each round numbers of the model's size (its parameters after local training), and for the AUC over
all sites counts of scores. Rows, names and numbers of persons do not.

What a site remembers between rounds is kept in the folder `{name}.memory` beside the data. Do not delete it while a run is
going on.
"""
