"""`python -m docs.build_reference`: the reference of lms3d's public names as HTML pages, from their docstrings (`make docs`).

pdoc makes them, without network. Open build/reference/lms3d.html.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import lms3d
from lms3d import console
from lms3d.cli import Parser, place

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    "lms3d",
    "lms3d.config",
    "lms3d.registry",
    "lms3d.engine.passes",
    "lms3d.engine.passes.base",
    "lms3d.engine.plan",
    "lms3d.engine.planners",
    "lms3d.engine.prediction",
    "lms3d.engine.step_model.study",
    "lms3d.engine.tiers",
    "lms3d.engine.tiers.base",
    "lms3d.keras_step.report",
    "lms3d.scoring.columns",
    "lms3d.tasks",
    "lms3d.tasks.task",
    "lms3d.training.callbacks.order",
    "lms3d.training.task",
)
"""What users import, and authors of a planner, a tier, a pass, a task, a column or a callback."""

_ARGUMENT = re.compile(r"[\w*]+(?:, [\w*]+)*(?:=\w+)?: \S")


def build(folder: Path) -> None:
    """Writes the pages below `folder`. Raises ModuleNotFoundError if pdoc is not installed."""
    import pdoc
    from jinja2 import pass_context
    from jinja2.runtime import Context

    from lms3d.engine import prediction
    from lms3d.keras_step import report

    markdown_of = pdoc.render.env.filters["to_markdown"]

    @pass_context
    def to_markdown(context: Context, docstring: str) -> str:
        return str(markdown_of(context, listed(docstring)))

    pdoc.render.configure(docformat="markdown", show_source=False, search=False)
    pdoc.render.env.filters["to_markdown"] = to_markdown
    for name in lms3d.__all__:  # lms3d loads them on first use, pdoc looks only at what is loaded
        setattr(lms3d, name, getattr(lms3d, name))
    for name, value in vars(
        prediction
    ).items():  # pdoc looks up the types of Report's inherited fields in Report's module
        vars(report).setdefault(name, value)
    for name, method in vars(lms3d.LMS).items():  # Keras's text on how to override them would stand in their place
        if name.startswith("on_") and not method.__doc__:
            method.__doc__ = "@private"
    pdoc.pdoc(*_specifications(), output_directory=folder)


def listed(docstring: str) -> str:
    """The docstring in which lines such as "tier: where tensors go" are items of a Markdown list."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        if _ARGUMENT.match(line):
            name, _, rest = line.partition(": ")
            lines += [*([] if in_list else [""]), f"- **{name}**: {rest}"]
            in_list = True
        else:
            if in_list and line and not line.startswith(" "):
                lines.append("")
            in_list = in_list and line.startswith(" ")
            lines.append(line)
    return "\n".join(lines)


def _specifications() -> list[str]:
    """What pdoc is told: each module, and after it that the modules below it are left out."""
    return [text for module in MODULES for text in (module, rf"!{re.escape(module)}\..+")]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m docs.build_reference",
        description="Make HTML pages of lms3d's public names from their docstrings.",
    )
    parser.add_argument(
        "--output", metavar="DIR", type=place, default=ROOT / "build" / "reference", help="where they go"
    )
    return parser


def main() -> None:
    """Builds the pages and says where they are."""
    folder = _parser().parse_args().output
    with console.quiet_native_log():  # it imports TensorFlow
        build(folder)
    print(f"The reference: {folder / 'lms3d.html'}")


if __name__ == "__main__":
    main()
