"""Rules for deploy/docker's Dockerfiles, after hadolint's (its numbers in brackets); each is shown to catch its mistake."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("Dockerfile*"))


class Instruction(NamedTuple):
    """One instruction: its name in capitals, and the rest with continued lines joined."""

    name: str
    value: str


def parse(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(name.upper(), value) for name, value in (line.split(None, 1) for line in joined.splitlines())]


def stages(instructions: list[Instruction]) -> Iterator[list[Instruction]]:
    starts = [number for number, (name, _) in enumerate(instructions) if name == "FROM"]
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        yield instructions[start:end]


def pinned_base(instructions: list[Instruction]) -> bool:
    """Every image has a tag (DL3006), which is not latest (DL3007)."""
    images = [value.split()[0] for name, value in instructions if name == "FROM"]
    return all(re.search(r":(?!latest$)[\w.-]+$", image) for image in images)


def user_is_not_root(instructions: list[Instruction]) -> bool:
    """The last USER is set, by number, and not root (DL3002); Kubernetes checks runAsNonRoot by the number."""
    *_, last = stages(instructions)
    users = [value for name, value in last if name == "USER"]
    return bool(users) and users[-1].isdecimal() and int(users[-1]) > 0


def no_sudo(instructions: list[Instruction]) -> bool:
    """DL3004."""
    return not any(re.search(r"\bsudo\b", value) for name, value in instructions if name == "RUN")


def apt_get_is_clean(instructions: list[Instruction]) -> bool:
    """apt-get, not apt (DL3027); update in the same RUN; --yes (DL3014), no recommends (DL3015), no lists left (DL3009)."""
    runs = [value for name, value in instructions if name == "RUN" and re.search(r"\bapt(-get)?\b", value)]
    wanted = ("apt-get update", "apt-get install --yes --no-install-recommends", "rm -rf /var/lib/apt/lists/*")
    return all(all(part in run for part in wanted) and not re.search(r"\bapt (install|update)", run) for run in runs)


def copy_instead_of_add(instructions: list[Instruction]) -> bool:
    """DL3020."""
    return not any(name == "ADD" for name, _ in instructions)


def pipefail(instructions: list[Instruction]) -> bool:
    """In each stage a shell with pipefail is chosen before the first RUN (DL4006)."""
    for stage in stages(instructions):
        names = [name for name, _ in stage]
        if "RUN" in names:
            before = stage[: names.index("RUN")]
            if not any(name == "SHELL" and "pipefail" in value for name, value in before):
                return False
    return True


def absolute_workdir(instructions: list[Instruction]) -> bool:
    """DL3000."""
    return all(value.startswith("/") for name, value in instructions if name == "WORKDIR")


def program_without_shell(instructions: list[Instruction]) -> bool:
    """ENTRYPOINT and CMD as lists, so that signals reach the program (DL3025)."""
    return all(value.startswith("[") for name, value in instructions if name in ("ENTRYPOINT", "CMD"))


GOOD = """\
FROM debian:12.5-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends make \\
    # a comment between
    && rm -rf /var/lib/apt/lists/*
COPY lms3d lms3d
WORKDIR /opt
USER 1000
ENTRYPOINT ["python"]
"""
MISTAKES = [
    (pinned_base, "debian:12.5-slim", "debian"),
    (pinned_base, "debian:12.5-slim", "debian:latest"),
    (user_is_not_root, "USER 1000", "USER root"),
    (user_is_not_root, "USER 1000", "USER 0"),
    (user_is_not_root, "USER 1000\n", ""),
    (no_sudo, "RUN apt-get update", "RUN sudo apt-get update"),
    (apt_get_is_clean, " --no-install-recommends", ""),
    (apt_get_is_clean, " --yes", ""),
    (apt_get_is_clean, "&& rm -rf /var/lib/apt/lists/*", "&& true"),
    (apt_get_is_clean, "apt-get update", "true"),
    (copy_instead_of_add, "COPY", "ADD"),
    (pipefail, 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\n', ""),
    (absolute_workdir, "WORKDIR /opt", "WORKDIR opt"),
    (program_without_shell, '["python"]', "python"),
]
RULES = list(dict.fromkeys(rule for rule, *_ in MISTAKES))
Rule = Callable[[list[Instruction]], bool]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_keeps_the_rule(path: Path, rule: Rule) -> None:
    assert rule(parse(path.read_text())), rule.__doc__


@pytest.mark.parametrize(("rule", "right", "wrong"), MISTAKES)
def test_rule_catches_its_mistake(rule: Rule, right: str, wrong: str) -> None:
    assert rule(parse(GOOD))
    assert right in GOOD
    assert not rule(parse(GOOD.replace(right, wrong)))


def test_there_is_an_image_for_cpus_and_one_for_gpus() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.gpu"]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps `path` out of the build: the last line that matches it or a folder above decides."""
    out = False
    candidates = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [Path(candidate).name for candidate in candidates] if "**/" in line else candidates
        if line and not line.startswith("#") and any(fnmatch.fnmatch(name, pattern) for name in names):
            out = not line.startswith("!")
    return out


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_exists_and_reaches_the_build(path: Path) -> None:
    copies = [value.split()[:-1] for name, value in parse(path.read_text()) if name == "COPY" and "--from" not in value]
    sources = [source for copy in copies for source in copy]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), f"{path.name} copies {source}, which does not exist"
        assert not ignored(source), f".dockerignore keeps {source} out, which {path.name} copies"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_package_of_the_project_gets_into_the_image(path: Path) -> None:
    """An editable install fails for a package that is named in pyproject.toml and missing."""
    named = re.search(r"^packages = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert named is not None
    needed = {name.split(".")[0] for name in re.findall(r'"([\w.]+)"', named.group(1))}
    copied = {v.split()[0].split("/")[0] for name, v in parse(path.read_text()) if name == "COPY" and "--from" not in v}
    assert needed <= copied


@pytest.mark.parametrize("path", [".venv", ".git", "runs", "tests", ".hypothesis", "lms3d/__pycache__", "data/a.pyc"])
def test_what_does_not_belong_into_an_image_stays_out(path: str) -> None:
    assert ignored(path)
