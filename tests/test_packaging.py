"""What is installed: our packages, all of them, and nobody else's under the same names."""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.mark.parametrize("name", PACKAGES)
def test_nobody_else_installs_a_module_of_our_name(name: str) -> None:
    """Our top-level names are plain words; no dependency may bring the same one."""
    assert set(packages_distributions().get(name, [])) <= {PROJECT["project"]["name"]}
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin == str(ROOT / name / "__init__.py")


def test_every_package_of_the_tree_is_shipped() -> None:
    """A new package can't be forgotten in the build."""
    unshipped = {"bench", "scripts", "tests"}
    assert {file.parent.name for file in ROOT.glob("*/__init__.py")} - unshipped == set(PACKAGES)


@pytest.mark.slow
def test_wheel_holds_exactly_our_files(tmp_path: Path) -> None:
    """The wheel has every file of our packages, migrations and other data included, and no other."""
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip_wheel, "--no-index", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        timeout=280,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert shipped == {str(file.relative_to(ROOT)) for package in PACKAGES for file in _files_of(package)}


def _files_of(package: str) -> list[Path]:
    files = (path for path in (ROOT / package).rglob("*") if path.is_file())
    return [path for path in files if "__pycache__" not in path.parts]
