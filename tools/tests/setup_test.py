"""tools/setup.sh asks for the right packages, with root, with sudo or with neither, and does nothing twice.

It runs in a copy of the project's tools/ with stand-ins for dpkg-query, apt-get, sudo and id, so nothing is installed.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"bookworm": "libboost1.81-dev", "noble": "libboost1.83-dev"}


class Machine:
    def __init__(self, folder: Path, codename: str = "bookworm", uid: int = 0, sudo: bool = False, installed: str = "",
                 fetch_status: int = 0):
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "tools").mkdir()
        for name in ("setup.sh", "requirements-test.txt"):
            shutil.copy(TOOLS / name, self.project / "tools" / name)
        fetch = self.project / "tools" / "fetch_xgrammar.sh"
        fetch.write_text(f"#!{shutil.which('bash')}\nexit {fetch_status}\n")
        fetch.chmod(0o755)
        self.log = folder / "calls"
        self.log.touch()
        (folder / "os-release").write_text(f"ID=some\nVERSION_CODENAME={codename}\n")
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in ("bash", "cat", "sha256sum", "sed", "grep", "mkdir", "dirname", "env", "true"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.stub("dpkg-query", f"for p in {installed}; do echo \"ii  $p\"; done; exit 1")
        self.stub("id", f"echo {uid}")
        self.stub("apt-get", f'echo "apt-get $*" >>{self.log}')
        if sudo:
            self.stub("sudo", f'echo "sudo $*" >>{self.log}\n[ "$1" = -n ] && shift\nexec "$@"')
        self.env = {"PATH": str(self.bin), "FOVEA_OS_RELEASE": str(folder / "os-release")}

    def stub(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)

    def setup(self, profile: str = "build") -> subprocess.CompletedProcess:
        return subprocess.run([str(self.project / "tools/setup.sh"), profile], env=self.env, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.mark.parametrize("codename", DISTRIBUTIONS)
def test_root_installs_what_the_distribution_calls_it(tmp_path, codename):
    machine = Machine(tmp_path, codename)
    assert machine.setup().returncode == 0
    update, install = machine.calls()
    assert update.startswith("apt-get update")
    packages = install.split()
    assert DISTRIBUTIONS[codename] in packages and "libdnnl-dev" in packages and "ninja-build" in packages
    assert not set(packages) & (set(DISTRIBUTIONS.values()) - {DISTRIBUTIONS[codename]})
    assert "clang-14" not in packages  # only tests need it


def test_second_call_does_nothing(tmp_path):
    machine = Machine(tmp_path)
    assert machine.setup().returncode == 0
    calls = machine.calls()
    machine.stub("dpkg-query", f'echo "dpkg-query" >>{machine.log}')
    assert machine.setup().returncode == 0
    assert machine.calls() == calls
    with open(machine.project / "tools/requirements-test.txt", "a") as requirements:
        requirements.write("# another\n")
    assert machine.setup().returncode == 0
    assert len(machine.calls()) > len(calls)


def test_builds_go_on_without_pypi_and_tests_do_not(tmp_path):
    machine = Machine(tmp_path, fetch_status=1)
    for _ in range(2):  # without a stamp it is tried again
        done = machine.setup()
        assert done.returncode == 0 and "xgrammar" in done.stderr
    assert machine.setup("test").returncode == 1


def test_only_the_missing_ones_are_installed(tmp_path):
    machine = Machine(tmp_path)
    machine.setup()
    everything = machine.calls()[1].split("--no-install-recommends ")[1].split()
    (tmp_path / "second").mkdir()
    other = Machine(tmp_path / "second", installed=" ".join(set(everything) - {"libhwy-dev"}))
    assert other.setup().returncode == 0
    assert other.calls()[1].endswith("--no-install-recommends libhwy-dev")


def test_sudo_where_there_is_no_root(tmp_path):
    machine = Machine(tmp_path, uid=1000, sudo=True)
    assert machine.setup().returncode == 0
    assert any(call.startswith("sudo apt-get update") for call in machine.calls())


def test_neither_gives_the_list(tmp_path):
    machine = Machine(tmp_path, uid=1000)
    done = machine.setup()
    assert done.returncode == 1
    assert machine.calls() == []
    assert "apt-get install --no-install-recommends" in done.stderr and "libboost1.81-dev" in done.stderr
    assert not (machine.project / "build").exists()  # no stamp: the next call asks again


def test_other_distributions_are_told_what_is_needed(tmp_path):
    done = Machine(tmp_path, codename="plucky").setup()
    assert done.returncode == 1
    assert "plucky" in done.stderr and "libdnnl-dev" in done.stderr


def test_wrong_profile(tmp_path):
    assert Machine(tmp_path).setup("everything").returncode == 2


def test_an_interrupted_installation_leaves_no_stamp(tmp_path):
    machine = Machine(tmp_path)
    machine.stub("apt-get", "exit 100")
    assert machine.setup().returncode != 0
    assert not (machine.project / "build/setup-build.stamp").exists()
