"""Downloads wheels, and packages of Debian, into the cache. Only headers and the libraries whose exports are read are
stored; the packages themselves are deleted."""

import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sources import Package

# The tables describe x86-64 Linux on any machine. pip also accepts the older manylinux tags.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_27_x86_64")


def fetch(package: Package, cache: Path) -> Path:
    """The folder with the package's `include` and `lib`, downloaded if it is not in the cache."""
    folder = cache / package.folder
    if folder.is_dir():
        return folder
    print(f"fetching {package.name} {package.version}", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked in a temporary folder and renamed at the end, so that an interrupted run leaves no incomplete package.
    with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as partial:
        unpacked = Path(partial) / "unpacked"
        if package.debian:
            _unpack_debian(package, Path(partial), unpacked)
        else:
            _unpack(_download(package, Path(partial)), package.keep, unpacked)
        unpacked.rename(folder)
    return folder


def _download(package: Package, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, f"{package.name}=={package.version}"], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def _unpack(wheel: Path, keep: tuple[str, ...], into: Path) -> None:
    kept = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            # The folders above include/ and lib/ differ between wheels, so they are removed.
            tail = _below_package(member)
            if tail is None or not any(fnmatch.fnmatch(tail, pattern) for pattern in keep):
                continue
            target = into / tail
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            kept += 1
    if not kept:
        raise SystemExit(f"{wheel.name}: none of {', '.join(keep)} inside")


def _unpack_debian(package: Package, folder: Path, into: Path) -> None:
    # apt gives up its rights for a download, so that it could not write into a folder of root.
    command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "--quiet", f"{package.name}={package.version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.deb")
    files = folder / "files"
    subprocess.run(["dpkg-deb", "--extract", archive, files], check=True)
    for path in sorted(files.rglob("*")):
        tail = _below_package(path.relative_to(files).as_posix())
        if tail and path.is_file() and any(fnmatch.fnmatch(tail, pattern) for pattern in package.keep):
            (into / tail).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into / tail)
    if not into.is_dir():
        raise SystemExit(f"{archive.name}: none of {', '.join(package.keep)} inside")


def _below_package(member: str) -> str | None:
    parts = member.split("/")
    for top in ("include", "lib"):
        if top in parts and not member.endswith("/"):
            return "/".join(parts[parts.index(top) :])
    return None
