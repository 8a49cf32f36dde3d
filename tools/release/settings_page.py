"""Writes docs/settings.md: every setting with its default, the paper's value, its meaning and its limits.

    python tools/release/settings_page.py > docs/settings.md
"""

from __future__ import annotations

from typing import Any, get_args

from ga3c.settings.files import yaml_scalar
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings, group_of

HEAD = """# Every setting

Written by `python tools/release/settings_page.py` from `ga3c.config.Settings`, as are `config.yaml` and `--help`.

A setting is given in a file (`--config FILE`, lines of `name: value`), as a flag (`--learning-rate 1e-4`; switches have
a `--no-` form) or in Python (`Config(learning_rate=1e-4)`). Defaults < preset < file < command line. *paper*: the value
that `--preset paper` gives, where it is another. Agent step: one decision of one environment; on Atari it is
`frame_skip` frames.
"""


def limits(annotation: Any, metadata: list[Any]) -> str:
    """What a setting's value may be, in short."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if all(isinstance(kind, str) for kind in kinds):
        return ", ".join(str(kind) for kind in kinds)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(limit, name):,}" for limit in metadata for name, sign in signs.items()
              if hasattr(limit, name)]
    name = "list" if str(annotation).startswith("tuple") else kinds[0].__name__
    return " ".join([{"bool": "switch", "str": "text"}.get(name, name), " and ".join(bounds)]).strip()


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    now = ""
    for name, field in Settings.model_fields.items():
        if group_of(field) != now:
            lines += [""] if now else []
            now = group_of(field)
            lines.append(f"## {now}\n\n| setting | default | paper | what it is | values |\n|---|---|---|---|---|")
        default = yaml_scalar(field.default)
        paper = yaml_scalar(PRESETS["paper"].get(name, field.default))
        what = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | `{default}` | {'' if paper == default else f'`{paper}`'} | {what} "
                     f"| {limits(field.annotation, field.metadata)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
