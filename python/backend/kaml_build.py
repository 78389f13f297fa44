"""Builds the wheel of the package, with the shared library in it: a build backend (PEP 517) without dependencies.

``pip install ./python`` calls it, and so does ``packaging/wheel``. It needs cargo and a C compiler, and no network if the crates
have been downloaded before.

Environment:
  KAML_LIBRARY  a libkaml.so that is built already; cargo is not called
  CARGO         the cargo to call, ``cargo`` if not set
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parents[1]
#: Reproducible: every file of the wheel has this time.
TIME = (1980, 1, 1, 0, 0, 0)
#: The name under which the package searches for its library.
LIBRARY = "libkaml.so.0"


def _field(name):
    """A string of ``pyproject.toml``, which Python before 3.11 has no parser for."""
    found = re.search(rf'^{name} = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.M)
    if found is None:
        raise SystemExit(f"pyproject.toml has no string {name}")
    return found[1]


def _metadata():
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {_field('name')}",
        f"Version: {_field('version')}",
        f"Summary: {_field('description')}",
        f"Requires-Python: {_field('requires-python')}",
        "License: Apache-2.0",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Topic :: Database :: Database Engines/Servers",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (HERE / "README.md").read_text()


def _library(scratch):
    """A stripped copy of the shared library, built first if none is named."""
    built = os.environ.get("KAML_LIBRARY")
    if not built:
        cargo = os.environ.get("CARGO", "cargo")
        if shutil.which(cargo) is None:
            raise SystemExit("building kaml needs cargo (https://rustup.rs), or KAML_LIBRARY with the path of a libkaml.so")
        root = HERE.parent
        subprocess.run([cargo, "build", "--release", "--locked", "-p", "kaml-capi"], cwd=root, check=True)
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
        built = root / target / "release/libkaml.so"
    copy = pathlib.Path(scratch) / LIBRARY
    shutil.copyfile(built, copy)
    if shutil.which("strip") is None:
        print("note: without `strip` the library keeps its symbols, and the wheel is several times as large", file=sys.stderr)
    else:
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
    return copy


def tag(library):
    """The tag of a wheel with this library: any Python 3, on systems whose glibc has every symbol that the library needs."""
    versions = re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", library.read_bytes())
    if not versions:
        raise SystemExit(f"{library} needs no glibc; wheels are made for Linux with glibc only")
    return f"py3-none-manylinux_2_{max(map(int, versions))}_{platform.machine()}"


def _record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel and returns its name."""
    info = f"{_field('name')}-{_field('version')}.dist-info"
    with tempfile.TemporaryDirectory() as scratch:
        library = _library(scratch)
        wheel_tag = tag(library)
        files = {f"kaml/{path.name}": path.read_bytes() for path in sorted((HERE / "kaml").glob("*.py"))}
        files["kaml/py.typed"] = b""
        files[f"kaml/{LIBRARY}"] = library.read_bytes()
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kaml\nRoot-Is-Purelib: false\nTag: {wheel_tag}\n".encode()
    files[f"{info}/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    lines = [_record_line(name, data) for name, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(lines) + "\n").encode()

    name = f"{_field('name')}-{_field('version')}-{wheel_tag}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if path.endswith(LIBRARY) else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            wheel.writestr(entry, data)
    return name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Writes the metadata alone, so pip does not build the library for them."""
    info = pathlib.Path(metadata_directory) / f"{_field('name')}-{_field('version')}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata())
    return info.name


def build_sdist(sdist_directory, config_settings=None):
    """Refused: the sources of the library are crates of the repository."""
    raise SystemExit("the Python package has no source distribution of its own; build a wheel in a clone of the repository")


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
