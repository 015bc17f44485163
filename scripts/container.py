#!/usr/bin/env python3
"""Does what the Containerfile says in a directory, without a container engine, and runs flatwalk there.

    scripts/container.py DIR [--quick] [--trust FILE] [-- ARGS…]     ARGS: of the image's command, flatwalk

As root, with debootstrap, which makes the base image of the same release of Debian; everything else is each
instruction of the Containerfile, carried out in a chroot. DIR keeps the stages: one that is there is not made
again. With --quick what is compiled is compiled fast rather than to be fast. --trust names certificates to
trust while stages are made, where a machine reaches package registries through a proxy of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[1]
#: Debian's archives, as its images have them.
MIRROR, SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
#: Debian's releases, as tags of its images.
RELEASES = {"12": "bookworm", "13": "trixie"}
QUICK = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}
#: What says how this machine reaches package registries, as a container engine would be told.
NETWORK = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "CARGO_HTTP_PROXY", "CARGO_BUILD_JOBS")


#: File systems of the kernel's that a command sees.
_KERNEL = ("proc", "sys", "dev")
#: Where certificates to trust are while a stage is made.
_TRUSTED = "trusted.pem"


@dataclass
class Stage:
    """A stage of the Containerfile: its base image, its name and what is done to it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def stages(text: str) -> list[Stage]:
    """What a Containerfile says."""
    found: list[Stage] = []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name or f"stage{len(found)}"))
        elif word:
            found[-1].steps.append((word, rest))
    return found


class Image:
    """A stage's files, and what is set for the commands that run there."""

    def __init__(self, place: Path) -> None:
        """In a directory."""
        self.place = place
        self.directory = Path("/")
        self.entry: list[str] = []
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
        }

    def run(self, command: list[str], **more: str) -> None:
        """Runs a command in the image, with the kernel's file systems."""
        mounts = [f"mount --rbind /{name} {shlex.quote(str(self.place / name))}" for name in _KERNEL]
        go = shlex.quote(f"cd {shlex.quote(str(self.directory))} && exec {shlex.join(command)}")
        script = " && ".join([*mounts, f"exec chroot {shlex.quote(str(self.place))} /bin/sh -c {go}"])
        known = {key: os.environ[key] for key in NETWORK if key in os.environ}
        environment = {**self.environment, **known, **more}
        subprocess.run(["unshare", "--mount", "/bin/sh", "-c", script], env=environment, check=True)

    def inside(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.place / (self.directory / path).relative_to("/")

    def do(self, word: str, rest: str) -> bool:
        """Carries out an instruction that only sets something; False if it is another."""
        match word:
            case "ENV":
                key, _, value = rest.partition("=")
                self.environment[key] = Template(value).substitute(self.environment)
            case "WORKDIR":
                self.directory = Path(rest)
                self.inside(".").mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "CMD":
                pass
            case _:
                return False
        return True


def bootstrap(tag: str, place: Path) -> Path:
    """The base image of a tag of Debian's, as debootstrap makes it."""
    release = RELEASES[tag.rpartition(":")[2].partition("-")[0]]
    base = place / release
    if not base.exists():
        part = place / f"{release}.part"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", release, str(part), MIRROR], check=True)
        sources = [f"deb {MIRROR} {release} main", f"deb {MIRROR} {release}-updates main"]
        sources.append(f"deb {SECURITY} {release}-security main")
        (part / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", part / "etc" / name)
        part.rename(base)
    return base


def copy(image: Image, made: dict[str, Image], words: str) -> None:
    """`COPY`: of the repository's files, or of another stage's."""
    *options, source, target = words.split()
    to = image.inside(target)
    if options:
        [option] = options
        subprocess.run(
            ["cp", "-a", str(made[option.removeprefix("--from=")].inside(source)), str(to)], check=True
        )
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def build(place: Path, more: dict[str, str], trusted: Path | None) -> Image:
    """Every stage; returns the last."""
    if trusted is not None:
        more |= dict.fromkeys(("PIP_CERT", "CARGO_HTTP_CAINFO"), f"/{_TRUSTED}")
    made: dict[str, Image] = {}
    for stage in stages((ROOT / "Containerfile").read_text(encoding="utf-8")):
        image = made[stage.name] = Image(place / stage.name)
        is_new = not image.place.exists()
        if is_new:
            image.place = place / f"{stage.name}.part"
            shutil.rmtree(image.place, ignore_errors=True)
            subprocess.run(["cp", "-a", str(bootstrap(stage.base, place)), str(image.place)], check=True)
            if trusted is not None:
                shutil.copy(trusted, image.place / _TRUSTED)
        for word, rest in stage.steps:
            if image.do(word, rest) or not is_new:
                continue
            print(f"{stage.name}: {word} {rest}", flush=True)
            if word == "RUN":
                image.run(["/bin/sh", "-c", rest], **more)
            elif word == "COPY":
                copy(image, made, rest)
            else:
                sys.exit(f"error: {word} is not known here\n  where: Containerfile")
        if is_new:
            (image.place / _TRUSTED).unlink(missing_ok=True)
            image.place = image.place.rename(place / stage.name)
    return image


def main() -> None:
    """Builds, and runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("place", type=Path, metavar="DIR")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trust", type=Path, metavar="FILE")
    own, _, arguments = " ".join(map(shlex.quote, sys.argv[1:])).partition(" -- ")
    options = parser.parse_args(shlex.split(own))
    options.place.mkdir(parents=True, exist_ok=True)
    image = build(options.place.resolve(), QUICK if options.quick else {}, options.trust)
    image.run([*image.entry, *(shlex.split(arguments) or ["--help"])])


if __name__ == "__main__":
    main()
