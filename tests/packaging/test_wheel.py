"""What a user gets: the wheel of the checkout and the wheel of the sdist are the same, and hold the three packages."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "tensorpact": ROOT / "src/tensorpact",
    "tensorpact_contracts": ROOT / "contracts/tensorpact_contracts",
    "tensorpact_kernels": ROOT / "kernels/tensorpact_kernels",
}


def build(hook: str, tree: Path, out: Path) -> Path:
    """Call one PEP 517 hook of the build backend in `tree`, without an isolated environment."""
    code = f"import sys, hatchling.build as backend; backend.{hook}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(out)], cwd=tree, check=True)
    (built,) = out.iterdir()
    return built


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return members(build("build_wheel", ROOT, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked tree of the sdist."""
    unpacked = tmp_path_factory.mktemp("sdist-tree")
    with tarfile.open(build("build_sdist", ROOT, tmp_path_factory.mktemp("sdist"))) as archive:
        archive.extractall(unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    return tree


def test_wheel_equals_the_wheel_of_the_sdist(
    wheel: dict[str, bytes], sdist: Path, tmp_path_factory: pytest.TempPathFactory
):
    again = members(build("build_wheel", sdist, tmp_path_factory.mktemp("wheel-of-sdist")))
    assert sorted(again) == sorted(wheel)
    assert [name for name in wheel if again[name] != wheel[name]] == []


def test_top_level_names_are_the_three_packages(wheel: dict[str, bytes]):
    top = {name.split("/")[0] for name in wheel}
    assert top == {*PACKAGES, "tensorpact-0.1.0.dist-info"}


def test_wheel_holds_every_file_of_the_packages(wheel: dict[str, bytes]):
    tree = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel if ".dist-info/" not in name} == tree
    assert {f"{name}/py.typed" for name in PACKAGES} <= tree


def test_metadata(wheel: dict[str, bytes]):
    metadata = wheel["tensorpact-0.1.0.dist-info/METADATA"].decode()
    required = {line for line in metadata.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line}
    assert required == {
        "Requires-Dist: torch<2.15,>=2.11",
        "Requires-Dist: triton<3.10,>=3.6; sys_platform == 'linux'",
        "Requires-Dist: jaxtyping>=0.3.11",
        "Requires-Dist: beartype>=0.23.1",
    }
    entry_points = wheel["tensorpact-0.1.0.dist-info/entry_points.txt"].decode()
    assert "tensorpact = tensorpact.cli:main" in entry_points
    assert "[pytest11]\ntensorpact = tensorpact.integrations.pytest_plugin" in entry_points
    assert "tensorpact-0.1.0.dist-info/licenses/LICENSE" in wheel


def test_sdist_can_be_tested(sdist: Path):
    for name in ("constraints.txt", "CHANGELOG.md", "README.md", "LICENSE", "tests/conftest.py"):
        assert (sdist / name).is_file(), name
