"""Steps within a time limit, for gpu_test.py, gpu_queue.py and gpu_compare.py: a command that overran ends with everything
it started, and what became of each step is in a file before the next begins, so that a run that is cut leaves its results.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OVERRAN = 124
GRACE_S = 3.0  # between asking a group to end and ending it
MOST_TAIL = 4000

_running: set[int] = set()  # process groups that end with this program


def end_group(group: int, patience: float = GRACE_S) -> None:
    """Asks every process of the group to end, and ends those that do not. The leader is the caller's to wait for."""
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + wait
        while time.monotonic() < until and _is_alive(group):
            time.sleep(0.05)


def _is_alive(group: int) -> bool:
    # The leader stays as a zombie until it is waited for, and counts as a member so long.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def _end_all(*_: object) -> None:
    for group in list(_running):
        end_group(group, 0.5)


def end_children_with_us() -> None:
    """However this program ends (but by SIGKILL), so do the groups that run."""
    atexit.register(_end_all)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))


def run_command(command: Sequence[str] | str, seconds: float, env: Mapping[str, str] | None = None,
                cwd: Path | None = None) -> tuple[int, str]:
    """(exit code, both outputs): OVERRAN when it took longer. Nothing that it started is left.

    A group of its own, not a session: where a whole session is ended from outside, these end with it.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would keep us waiting for whoever inherited it
        child = subprocess.Popen(command, shell=isinstance(command, str), env=dict(env) if env is not None else None, cwd=cwd,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0)
        _running.add(child.pid)
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = OVERRAN
        finally:
            end_group(child.pid)
            child.wait()
            _running.discard(child.pid)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return code, text + (f"\ntook more than {seconds:.0f} s\n" if code == OVERRAN else "")


@dataclass
class Outcome:
    """What became of a step: `passed` and `failed` count its tests, or the step itself."""

    code: int
    passed: int
    failed: int
    seconds: float
    tail: str = ""

    @property
    def is_good(self) -> bool:
        return self.code == 0 and self.failed == 0 and self.passed > 0


class Results:
    """The outcomes in a file: {"steps": {name: {...}}}, written after each. What the file has already is kept."""

    def __init__(self, path: Path, resume: bool):
        self.path = path
        self.steps: dict[str, Outcome] = {}
        if resume and path.exists():
            try:
                self.steps = {name: Outcome(**step) for name, step in json.loads(path.read_text())["steps"].items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                sys.exit(f"{path} does not hold results of steps ({error!r}); remove it, or name another file")
        path.parent.mkdir(parents=True, exist_ok=True)

    def has_passed(self, name: str) -> bool:
        return name in self.steps and self.steps[name].is_good

    def add(self, name: str, outcome: Outcome) -> None:
        outcome.tail = outcome.tail[-MOST_TAIL:]
        outcome.seconds = round(outcome.seconds, 1)
        self.steps[name] = outcome
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({"steps": {n: asdict(step) for n, step in self.steps.items()}}, indent=1) + "\n")
        new.replace(self.path)
