"""The documentation as a site: `pip install -e '.[docs]' && sphinx-build docs docs/_build`."""

import ast
from pathlib import Path

_package = ast.parse((Path(__file__).parents[1] / "ga3c" / "__init__.py").read_text(encoding="utf-8"))
release = next(ast.literal_eval(line.value) for line in _package.body if isinstance(line, ast.Assign)
               and [getattr(target, "id", "") for target in line.targets] == ["__version__"])
project = "GA3C"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = f"GA3C {release}"
# Pages are read on their own, too: links to files of the repository stay as they are, and are no pages of the site.
suppress_warnings = ["myst.xref_missing"]
