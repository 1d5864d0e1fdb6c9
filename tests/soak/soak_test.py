"""The bounded form of `make soak`, part of `make test`: some of each, and what must hold whatever the machine's speed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import devices
import faults
import load
import storm
from server import BINARY, ROOT, Server, raise_descriptor_limit


@pytest.fixture(autouse=True)
def descriptors():
    raise_descriptor_limit()


# Of a GPU's steps, graphs and overlap, without one.
@pytest.mark.parametrize("device", [devices.CPU, devices.HOLLOW])
def test_clients_that_misbehave_leave_nothing_behind(device):
    with Server("--kv-cache-mib", "128", "--max-context", "4096", device=device) as server:
        outcomes, wrong = storm.run(server, 250, seed=int(time.time()))
        assert wrong == [], outcomes
        assert outcomes["answered"] > 20 and outcomes["left"] > 20, outcomes
        assert server.stop() == 0


def test_overload_is_answered_or_refused():
    figures, wrong = load.overload(10.0, 3.0)
    assert wrong == [], figures
    assert figures["refused"] > 0, figures


def test_waiting_streams_are_held():
    grown, wrong = load.idle_streams(300)
    assert wrong == []
    assert grown < 300 * 200e3


def test_streams_beside_prompts_end_well():
    gaps, _ = asyncio.run(paced())
    assert len(gaps) > 10


async def paced():
    with Server("--kv-cache-mib", "128", "--quiet", "--max-context", "16384") as server:
        return await load.pace(server, 2, 4000, 12000)


@pytest.mark.parametrize("fault", faults.ALL, ids=lambda fault: fault.__name__)
def test_fault(fault):
    assert fault() == []


def test_configuration_is_read_again(tmp_path):
    config = tmp_path / "fovea.toml"
    config.write_text('[serve]\napi_key = ["first"]\n')
    with Server("--config", str(config), "--kv-cache-mib", "64", stderr=subprocess.PIPE) as server:
        assert server.ask(Authorization="Bearer first") == 4

        def reload(text: str) -> str:
            config.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            said = ""
            while not re.search("changed: |was refused", line := server.process.stderr.readline()):
                said += line
            return said + line

        said = reload('[serve]\napi_key = ["second"]\nmax_running = 3\nmax_body_mib = 1\nlog_format = "off"\n')
        assert "changed: api_key, log_format, max_body_mib; at the next start: max_running" in said
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.ask(Authorization="Bearer first")
        assert refused.value.code == 401
        assert server.ask(Authorization="Bearer second") == 4
        # What is wrong changes nothing.
        for wrong, why in (('[serve]\napi_key = ["third"]\nno_such_key = 1\n', "no_such_key"), ("[serve", "fovea.toml"),
                           ('[serve]\napi_key = ["third"]\nidle_seconds = -1\n', "idle")):
            said = reload(wrong)
            assert why in said and said.endswith("the new configuration was refused; the old one goes on\n"), said
            assert server.ask(Authorization="Bearer second") == 4
        assert server.stop() == 0


def test_the_dashboard_asks_for_metrics_that_are_there():
    dashboard = (ROOT / "deploy/grafana.json").read_text()
    expressions = [target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"fovea_\w+", expression)}
    with Server("--kv-cache-mib", "64") as server:
        server.ask()
        given = set(re.findall(r"^(fovea_\w+)", server.get("/metrics"), re.M))
    assert len(asked) > 10 and asked <= given, asked - given


def test_doctor_looks_at_a_server():
    def doctor(*arguments: str) -> tuple[int, dict[str, str]]:
        done = subprocess.run([BINARY, "doctor", "--json", "-", *arguments], capture_output=True, text=True, timeout=60)
        checks = json.loads(done.stdout)["checks"] if done.stdout else []
        return done.returncode, {check["check"]: check["state"] for check in checks}

    with Server("--kv-cache-mib", "64", "--api-key", "secret") as server:
        url = f"http://127.0.0.1:{server.port}"
        code, checks = doctor("--server", url, "--api-key", "secret")
        assert code == 0 and checks["healthy"] == checks["ready"] == "yes" and checks["model"] == "needle", checks
        assert checks["one token"].endswith(" ms") and checks["first token"] != ""
        code, checks = doctor("--server", url)
        assert code == 0 and checks["model"] == "unknown", checks
    code, checks = doctor("--server", url)
    assert code == 1 and checks == {}


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--rounds", "-1"], ["--threads", "0"]])
def test_speculation_says_what_it_cannot_measure(wrong):
    said = subprocess.run([sys.executable, str(ROOT / "tests/soak/speculation.py"), *wrong], capture_output=True, text=True)
    assert said.returncode == 2 and "must be at least 1" in said.stderr and "Traceback" not in said.stderr
