"""`python -m docs.list_dependencies`: name, version and licence of everything that an installation of lms3d pulls in.

It reads the metadata of the installed packages and opens no connection. A package that only an extra needs is marked with the
name of that extra.
"""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

_OWN = "lms3d"
_EXTRAS = ("imaging", "horovod", "gpu", "export", "dicom", "compare", "dev")


def licence(found: Distribution) -> str:
    """The licence as the package states it: the SPDX expression, else a classifier, else the first line of its text."""
    about: Any = found.metadata  # an email message, which its type does not say
    if expression := about.get("License-Expression"):
        return str(expression)
    named = [one.split(" :: ")[-1] for one in about.get_all("Classifier") or [] if one.startswith("License :: OSI")]
    text = (about.get("License") or "").strip().splitlines()
    return ", ".join(named) or (text[0][:60] if text else "not stated")


def needed(
    name: str, extra: str = "", seen: dict[str, Distribution | None] | None = None
) -> dict[str, Distribution | None]:
    """Name -> installed distribution (None: not installed) for every package that `name` needs here, directly or not."""
    seen = {} if seen is None else seen
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        key = requirement.name.lower().replace("_", "-")
        if not wanted or key in seen or key == _OWN:
            continue
        try:
            seen[key] = distribution(requirement.name)
        except PackageNotFoundError:
            seen[key] = None
            continue
        for inner in ("", *requirement.extras):
            needed(requirement.name, inner, seen)
    return seen


def main() -> None:
    """Prints the table."""
    shown: set[str] = set()
    for extra in ("", *_EXTRAS):
        for name, found in sorted(needed(_OWN, extra).items()):
            if name not in shown:
                what = f"{found.version:<14} {licence(found)}" if found else "not installed"
                print(f"{name:<30} {extra:<8} {what}".rstrip())
            shown.add(name)


if __name__ == "__main__":
    main()
