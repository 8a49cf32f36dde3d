"""What is shipped: sdist and wheel are whole, the documentation builds without a warning and agrees with the code."""

from __future__ import annotations

import email
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import shtab
from settings_page import page

import ga3c

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist and wheel, made by the build backend of a copy of what they are made from."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "MANIFEST.in"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "ga3c", source / "ga3c", ignore=shutil.ignore_patterns("__pycache__"))
    program = ("from setuptools.build_meta import build_sdist, build_wheel\n"
               "build_sdist('dist')\nbuild_wheel('dist')")
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True, timeout=100)
    return source / "dist"


def package() -> set[str]:
    """The files of the package, modules and data."""
    return {str(path.relative_to(ROOT)) for pattern in ("*.py", "*.yaml", "*.npz", "*.txt")
            for path in (ROOT / "ga3c").rglob(pattern)}


def test_the_wheel_holds_all_modules_and_data_of_one_version(built: Path) -> None:
    wheel, = built.glob("*.whl")
    assert wheel.name.startswith(f"ga3c-{ga3c.__version__}-py3-none-any")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if name.startswith("ga3c/")}
        metadata = email.message_from_bytes(file.read(f"ga3c-{ga3c.__version__}.dist-info/METADATA"))
    assert names == package()
    assert metadata["Version"] == ga3c.__version__
    assert "GPL-2.0-only" in str(metadata.get_payload())
    assert {"gpu", "export", "docs", "test"} <= set(metadata.get_all("Provides-Extra") or ())


def test_the_sdist_can_be_built_from(built: Path) -> None:
    sdist, = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"setup.cfg", "pyproject.toml", "README.md"} | package() <= names


def test_a_shell_can_complete_the_commands() -> None:
    for parser, option in (("train", "--learning-rate"), ("evaluate", "--episodes"), ("export", "--no-onnx"),
                           ("track", "--project")):
        made = importlib.import_module(f"ga3c.commands.{parser}").parser()
        assert option in shtab.complete(made, "bash"), parser


# ------------------------------------------------------------------------------------------------ documentation

def test_the_page_of_settings_is_of_these_settings() -> None:
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page()


def test_examples_are_shown_as_they_are() -> None:
    shown = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    for name in ("corridor.py", "my_network.py", "minigrid.yaml"):
        assert f"\n{(ROOT / 'docs/examples' / name).read_text(encoding='utf-8')}```\n" in shown, name


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", ROOT / "docs", tmp_path / "site"],
                          capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "NO_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"GA3C {ga3c.__version__}" in (tmp_path / "site/index.html").read_text(encoding="utf-8")
