"""Loading tensorpact is cheap and leaves the optional dependencies alone; what nobody uses is not loaded at all."""

import json
import os
import pathlib
import subprocess
import sys

LIMIT_S = 0.15
TRIES = 5
LEFT_ALONE = {"triton", "rich", "typer", "pytest", "hypothesis"}
PROBE = """
import json, sys, time
import torch, jaxtyping, beartype
before = set(sys.modules)
start = time.process_time()
import tensorpact
tensorpact.contract
spent = time.process_time() - start
print(json.dumps({"spent": spent, "new": sorted({name.split(".")[0] for name in set(sys.modules) - before})}))
"""


def probe(cache: pathlib.Path) -> tuple[float, set[str]]:
    """Import tensorpact in a fresh process; return the seconds it added and the top-level packages it pulled in."""
    # What users have is compiled once; an environment that forbids bytecode would measure the compiler.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache)
    command = [sys.executable, "-c", PROBE]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    seen = json.loads(out)
    return seen["spent"], set(seen["new"])


def test_import_adds_little(tmp_path: pathlib.Path):
    fastest = float("inf")
    for _ in range(TRIES):  # the best of several: the first writes bytecode, and the machine may be busy
        spent, new = probe(tmp_path)
        assert new & LEFT_ALONE == set()
        fastest = min(fastest, spent)
        if fastest < LIMIT_S:
            break
    assert fastest < LIMIT_S


def test_the_package_alone_loads_no_torch():
    script = """
import sys
import tensorpact, tensorpact.integrations.pytest_plugin
sys.exit(len(sys.modules.keys() & {"torch", "jaxtyping", "beartype", "tensorpact._entry"}))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_pytest_session_without_contracts_loads_no_torch(tmp_path: pathlib.Path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\ndef test_plain(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('tensorpact')\n"
        "    ours = {name for name in sys.modules if name.startswith('tensorpact')}\n"
        "    assert ours == {'tensorpact', 'tensorpact.integrations', 'tensorpact.integrations.pytest_plugin'}\n"
        "    assert 'torch' not in sys.modules\n",
        encoding="utf-8",
    )
    # Nothing else that is installed may bring torch in.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:jaxtyping", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
