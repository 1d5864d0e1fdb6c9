"""The C++ side of the peer tests: starts fovea_peer_driver and talks JSON lines with it."""
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Driver:
    def __init__(self):
        path = os.environ.get("FOVEA_PEER_DRIVER", str(ROOT / "build/release/tests/fovea_peer_driver"))
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} is not built (target fovea_peer_driver); FOVEA_PEER_DRIVER names another place")
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        """One request; the answer as a dict, which has "error" where it failed."""
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the driver died on {json.dumps(request)[:2000]}"
        return json.loads(line)

    def get(self, field, **request):
        """One request that must succeed; one field of the answer."""
        answer = self.ask(**request)
        assert "error" not in answer, answer["error"]
        return answer[field]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)
