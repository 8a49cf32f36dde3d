"""Writes docs/settings.md: every setting with its default, the paper's value, its meaning and its values.

    python tools/release/settings_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from ga3c.settings.files import yaml_scalar
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import ALL, GROUPS, SettingField

HEAD = """# Every setting

Written by `python tools/release/settings_page.py` from `ga3c/settings/schema.py`. So is `config.yaml`,
which is what `ga3c-train --print-config` prints.

A setting is given in a file (`--config FILE`), as a flag (`--learning-rate 1e-4`; switches have a `--no-` form) or in
Python (`Config(learning_rate=1e-4)`). In a file settings stand under their group; flags and Python use the name alone.
The command line overrides the file, the file the preset, the preset the defaults. So keep in a file only the lines you
change. If no preset is named, `a3c`, `a2c` and `a3c-cpu` begin with the values of `fast`; `a2c` and `ppo` begin with
`schedule: alternating`. The column *paper* has the value of `--preset paper` where it differs. Agent step: one decision
of one environment; on Atari it is `frame_skip` frames.
"""


def values(setting: SettingField) -> str:
    """Describes the allowed values of a setting briefly."""
    if setting.choices:
        return ", ".join(setting.choices)
    annotation = setting.field.annotation
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {getattr(limit, name):,}" for limit in setting.field.metadata for name, sign in signs.items()
              if hasattr(limit, name)]
    name = "list" if str(annotation).startswith("tuple") else kinds[0].__name__
    return " ".join([{"bool": "switch", "str": "text"}.get(name, name), " and ".join(bounds)]).strip()


def page() -> str:
    """Returns the whole page as Markdown."""
    lines = [HEAD]
    for group, kind in GROUPS.items():
        lines.append(f"## {group}\n\n{kind.__doc__}\n\n"
                     "| setting | default | paper | meaning | values |\n|---|---|---|---|---|")
        for name, field in kind.model_fields.items():
            default = yaml_scalar(field.default)
            paper = yaml_scalar(PRESETS["paper"].get(name, field.default))
            what = (field.description or "").replace("|", "\\|")
            lines.append(f"| `{name}` | `{default}` | {'' if paper == default else f'`{paper}`'} | {what} "
                         f"| {values(ALL[name])} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs/settings.md").write_text(page(), encoding="utf-8")
