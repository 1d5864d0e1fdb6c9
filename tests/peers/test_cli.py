"""The command line: exit codes, flags against environment against TOML, JSON outputs, generate and chat."""

import json
import os
import pty
import resource
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("FOVEA_BINARY", str(ROOT / "build/release/fovea"))
FACTS = "The code of the amber lantern is 74912. The keeper of the northern gate is Marisol.\n"


def fovea(*arguments, env=None, stdin=""):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOVEA_")}
    return subprocess.run([BINARY, *arguments], input=stdin, capture_output=True, text=True, timeout=120,
                          env={**clean, **(env or {})}, check=False)


def printed(*arguments, **options):
    """--print-config as a dict of key to TOML text."""
    done = fovea(*arguments, "--print-config", **options)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line and line[0] != "#")


def test_help_and_version():
    done = fovea("--help")
    assert done.returncode == 0
    for command in ("serve", "generate", "chat", "demo", "bench", "plan", "warmup", "doctor"):
        assert f"\n  {command} " in done.stdout
    assert fovea("--version").stdout.startswith("fovea ")
    for command in (["serve"], ["generate"], ["chat"], ["demo"], ["bench", "serve"], ["warmup"], ["doctor"]):
        text = fovea(*command, "--help").stdout
        assert "Examples:" in text and "FOVEA_" in text


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--nonsense"], ["generate", "x", "--top-k", "many"],
                                       ["serve", "--port", "99999"], ["serve", "--kv-dtype", "int3"], ["bench"],
                                       ["serve", "--config", "/nonexistent.toml"]])
def test_wrong_usage_is_2(arguments):
    done = fovea(*arguments)
    assert done.returncode == 2 and done.stderr and not done.stdout


@pytest.mark.parametrize("arguments", [["generate", "--file", "/nonexistent", "--question", "x"],
                                       ["generate", "x", "--model", "/nonexistent"]])
def test_failure_is_1(arguments):
    done = fovea(*arguments)
    assert done.returncode == 1 and "/nonexistent" in done.stderr and not done.stdout


def test_profile_keys_teaches_page_selection(tmp_path):
    sketch = tmp_path / "sketch.json"
    done = fovea("profile", "keys", "--context", "1024", "--documents", "2", "--out", str(sketch))
    assert done.returncode == 0 and "4 layers of 2 KV heads" in done.stdout and "documents: 2" in done.stdout, done.stderr
    layers = json.loads(sketch.read_text())["layers"]
    assert [len(heads) for heads in layers] == [2] * 4
    shipped = json.loads((ROOT / "models/needle/key_sketch.json").read_text())["layers"]
    for ours, theirs in zip(sum(layers, []), sum(shipped, [])):  # learned of longer documents
        assert len(set(ours["channels"]) & set(theirs["channels"])) >= 18
    asked = ["eval", "needle", "--context", "2048", "--questions", "12", "--sparse", "fovea", "--kv-budget", "256", "--json", "-"]
    right = json.loads(fovea(*asked, "--key-sketch", str(sketch)).stdout)["right"]
    assert right >= json.loads(fovea(*asked).stdout)["right"] - 1
    # A text of one's own, and what cannot be learned of.
    (tmp_path / "text.txt").write_text(FACTS * 20)
    done = fovea("profile", "keys", "--text", str(tmp_path / "text.txt"), "--context", "256", "--documents", "2", "--out", "-")
    assert done.returncode == 0 and len(json.loads(done.stdout)["layers"]) == 4
    sketch.write_text(json.dumps({"layers": layers[:3]}))
    for arguments, code, says in ((["profile", "keys", "--context", "100"], 2, "context is 100"),
                                  (["profile", "keys", "--kv-dtype", "int8"], 1, "kv_dtype is int8"),
                                  (["profile", "keys", "--context", "9999999"], 1, "context is 9999999"),
                                  (["profile", "keys", "--out", "/nonexistent/x"], 1, "/nonexistent/x"),
                                  (["generate", "x", "--key-sketch", "/nonexistent/x"], 1, "/nonexistent/x"),
                                  (["generate", "x", "--key-sketch", str(sketch)], 1, "4 layers")):
        done = fovea(*arguments)
        assert done.returncode == code and says in done.stderr, done.stderr


@pytest.mark.parametrize("arguments,says", [
    (["serv"], "serv"), (["bench", "plans"], "plans"), (["serve", "--modle", "x"], "--modle: --model is near"),
    (["serve", "--stream-intervall=4"], "--stream-interval is near"), (["chat", "--max-tokens", "-5"], "max_tokens is -5"), (["generate", "x", "--kv-cache-mib", "-1"], "kv_cache_bytes"),
    (["generate", "x", "--max-context", "1"], "max_context"), (["generate", "x", "--config", "/"], "cannot read /"),
    (["generate", "x", "--config", "/dev/zero"], "MiB"), (["bench", "plan", "--page", "0"], "pages of 0"),
    (["bench", "plan", "--requests", "100000000"], "at most 65536 requests"),
    (["bench", "attention", "--device", "gpu0"], "expected cpu, cuda or cuda:N"),
    (["bench", "attention", "--device", "cuda:0", "--suite", "decoding"], "separated by commas"),
    (["bench", "attention", "--device", "cuda:0", "--layout", "DNH"], "NHD or HND"),
    (["eval", "needle", "--filler", "text"], "--text"), (["eval", "needle", "--facts", "-3"], "facts is -3"),
    (["eval", "needle", "--json", "-", "--svg", "-"], "stdout"), (["serve", "--handler-threads", "100000"], "handler"),
    (["serve", "--idle-seconds", "nan"], "idle"), (["serve", "--max-connections", "0"], "connections"),
    # As "$KEY" where it is not set: such a server would be open.
    (["serve", "--api-key", ""], "--api-key is empty"), (["serve", "--served-model-name", ""], "name is empty"),
    (["serve", "--cors-origin", "app.example.org"], "https://"), (["serve", "--allowed-host", "a b"], "--allowed-host"),
    (["serve", "--kv-events", "tcp://*:99999"], "65535"),
    (["serve", "--stream-interval", "0"], "1 (an event a token)"), (["serve", "--stream-interval", "1.5"], "stream-interval"),
    (["serve", "--drain-seconds", "inf"], "drain"), (["serve", "--host="], "host"),
    (["generate", "x", "--seed", "-1"], "seed"), (["bench", "model", "--peers", "{peers}"], "rows[0].peer is number"),
    (["bench", "attention", "--peers", "{peers}"], "is no JSON list"),
    # Said before a model is looked for.
    (["bench", "serve", "/nonexistent", "--workload", "chats"], "sharegpt"),
    (["bench", "serve", "/nonexistent", "--rate", "1e-300"], "--rate"), (["bench", "serve", "/nonexistent", "--rate", "trace"], "--trace"),
    (["bench", "serve", "/nonexistent", "--concurrency", "0"], "--concurrency"),
    (["bench", "serve", "/nonexistent", "--workload", "interrupted"], "--rate"),
    (["bench", "serve", "/nonexistent", "--trace", "{peers}"], "timestamp"),
    (["bench", "serve", "/nonexistent", "--requests", "2000000"], "1..1000000")])
def test_contradictory_and_absurd_values_are_2_and_named(arguments, says, tmp_path):
    (tmp_path / "peers.json").write_text('{"rows": [{"peer": 1}]}')
    done = fovea(*[argument.format(peers=tmp_path / "peers.json") for argument in arguments])
    assert done.returncode == 2 and says in done.stderr and not done.stdout


def test_a_log_level_that_is_empty_is_the_default():
    assert fovea("doctor", "--help", env={"FOVEA_LOG_LEVEL": ""}).returncode == 0
    assert fovea("doctor", "--help", env={"FOVEA_LOG_LEVEL": "loud"}).returncode == 2


def test_a_key_that_is_empty_in_the_environment_is_refused():
    done = fovea("serve", "--port", "0", env={"FOVEA_API_KEY": ""})
    assert done.returncode == 2 and "FOVEA_API_KEY is empty" in done.stderr and not done.stdout
    # A flag beats it; then the next thing that is wrong is said.
    done = fovea("serve", "--api-key", "secret", "--stream-interval", "0", env={"FOVEA_API_KEY": ""})
    assert done.returncode == 2 and "FOVEA_API_KEY" not in done.stderr and "stream-interval" in done.stderr


@pytest.mark.parametrize("arguments,says", [
    (["generate", "--file", "/dev/zero", "--question", "x"], "MiB"),
    (["eval", "needle", "--questions", "100000", "--json", "/nonexistent/x"], "/nonexistent/x"),
    (["bench", "plan", "--json", "/nonexistent/x"], "/nonexistent/x"),
    (["bench", "model", "--json", "/nonexistent/x"], "/nonexistent/x"), (["bench", "ops", "--json", "/nonexistent/x"], "/nonexistent/x"),
    (["bench", "model", "-m", "/nonexistent", "--read-gb", "1e6"], "cannot open /nonexistent"),
    (["generate", "x", "--json", "/nonexistent/x"], "/nonexistent/x"),
    (["doctor", "--json", "/nonexistent/x"], "No such file"),
    (["bench", "attention", "--kv-gb", "1000000"], "left")])
def test_what_cannot_work_fails_at_once(arguments, says):
    done = fovea(*arguments)
    assert done.returncode == 1 and says in done.stderr and not done.stdout


def test_a_cache_without_memory_says_what_to_ask_for():
    done = subprocess.run([BINARY, "generate", "x", "--kv-cache-mib", "20000"], capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)), check=False)
    assert done.returncode == 1 and "no memory" in done.stderr and "--kv-cache-mib" in done.stderr, done.stderr


def test_verify_refuses_what_would_take_hours():
    done = fovea("plan", "explain", "--verify", "-", stdin='{"requests": [{"kv": 16777216, "q": 16777216}]}')
    assert done.returncode == 1 and "--verify" in done.stderr
    assert fovea("plan", "explain", "--verify", "-", stdin='{"requests": [{"kv": 100, "q": 100}]}').returncode == 0
    done = fovea("plan", "explain", "--verify", "--gpu", "sm_90a")  # a plan that was made without the page lists
    assert done.returncode == 0 and "verified" in done.stdout, done.stderr


def test_demo_says_that_a_file_is_empty():
    done = fovea("demo", "--file", "/dev/null", "--question", "x")
    assert done.returncode == 2 and "/dev/null is empty" in done.stderr


@pytest.mark.parametrize("arguments", [["doctor"], ["plan", "explain", "--steps"], ["plan", "explain", "--json", "-"]])
def test_a_full_disk_is_a_failure(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("fovea: ")


def test_flag_beats_environment_beats_file(tmp_path):
    config = tmp_path / "fovea.toml"
    config.write_text("port = 1\nmax_queued = 2\nprefix_cache = false\n[serve]\nmax_queued = 3\nmax_running = 4\n")
    values = printed("serve", "--config", str(config), "--max-running", "6", env={"FOVEA_MAX_RUNNING": "5"})
    assert values["port"] == "1" and values["max_queued"] == "3" and values["max_running"] == "6"
    assert values["prefix_cache"] == "false"
    assert printed("serve", "--config", str(config), env={"FOVEA_MAX_RUNNING": "5"})["max_running"] == "5"
    assert printed("generate", env={"FOVEA_CONFIG": str(config)})["max_queued"] == "2"
    assert printed("serve", env={"FOVEA_CONFIG": str(config)}, )["max_running"] == "4"


def test_print_config_reads_back(tmp_path):
    config = tmp_path / "fovea.toml"
    made = fovea("generate", "--stop", "a,\"b", "--stop", "c", "--temperature", "0.5", "--no-share-prefixes", "--print-config")
    config.write_text(made.stdout)
    assert fovea("generate", "--config", str(config), "--print-config").stdout == made.stdout
    assert '["a,\\"b", "c"]' in made.stdout


@pytest.mark.parametrize("text,says", [("prot = 1", "prot"), ("[nonsense]\nx = 1", "nonsense"), ("port = \"x\"", "port"),
                                       ("port = ", "1:"), ("[serve]\nquestion = \"x\"", "serve.question")])
def test_wrong_files_are_named(tmp_path, text, says):
    config = tmp_path / "fovea.toml"
    config.write_text(text)
    done = fovea("serve", "--config", str(config))
    assert done.returncode == 2 and says in done.stderr


LONG = "x" * 50_000


@pytest.mark.parametrize("arguments", [
    [LONG], ["serve", "--" + LONG], ["serve", "--port", LONG], ["serve", "--port=" + LONG], ["serve", "--kv-dtype", LONG],
    ["serve", "--host", LONG], ["generate", "x", LONG + " " + LONG], ["generate", "x", "--model", LONG],
    ["generate", "x", "--dense-layers", LONG], ["generate", "x", "--sparse", LONG], ["generate", "x", "--streaming", LONG],
    ["generate", "--file", LONG, "--question", "x"], ["generate", "x", "--config", LONG],
    ["generate", "x", "--load-format", LONG], ["plan", "explain", LONG], ["bench", "plan", "--json", LONG],
    ["bench", "attention", "--device", LONG], ["bench", "attention", "--suite", LONG],
    ["eval", "needle", "--settings", LONG], ["eval", "needle", "--filler", LONG]])
def test_what_is_long_is_cut_in_messages(arguments):
    done = fovea(*arguments)
    assert done.returncode != 0 and " bytes)" in done.stderr and len(done.stderr) < 2000


def test_what_is_long_is_cut_in_messages_about_environment_and_files(tmp_path):
    done = fovea("serve", env={"FOVEA_PORT": LONG})
    assert done.returncode == 2 and "50000 bytes" in done.stderr and len(done.stderr) < 2000
    config = tmp_path / "fovea.toml"
    for text in (f"{LONG} = 1", f"port = '{LONG}'", f"[{LONG}]\nx = 1", f"[serve]\n{LONG} = 1", f"x = '{LONG}", f"a = 1\na.{LONG} = 2"):
        config.write_text(text)
        done = fovea("serve", "--config", str(config))
        assert done.returncode == 2 and len(done.stderr) < 2000, done.stderr[:500]
    for text in (f'{{"{LONG}": 1}}', f'{{"mask": "{LONG}", "requests": [{{"kv": 1}}]}}', f'{{"{LONG}'):
        done = fovea("plan", "explain", "-", stdin=text)
        assert done.returncode == 2 and "bytes)" in done.stderr and len(done.stderr) < 2000


def test_doctor():
    found = json.loads(fovea("doctor", "--json", "-").stdout)
    assert found["machine"]["threads"] >= 1
    assert {"SIMD scalar", "threads", "memory"} <= {check["check"] for check in found["checks"]}
    assert "SIMD scalar" in fovea("doctor").stdout


def test_doctor_says_what_is_missing(tmp_path):
    """Without a compiler of kernels, doctor says so and what to do; the folder of kernels is named."""
    env = {"FOVEA_NVRTC": "/nowhere/libnvrtc.so", "FOVEA_CACHE_DIR": str(tmp_path / "kernels")}
    checks = {c["check"]: c for c in json.loads(fovea("doctor", "--json", "-", env=env).stdout)["checks"]}
    assert checks["NVRTC"]["state"] == "no" and "/nowhere/libnvrtc.so" in checks["NVRTC"]["note"]
    assert str(tmp_path / "kernels") in checks["kernel cache"]["note"]


def test_warmup(tmp_path):
    """Compiles what the embedded model needs, finds it the second time, with NVRTC or without."""
    model = str(ROOT / "models/needle/config.json")
    env = {"FOVEA_CACHE_DIR": str(tmp_path / "cache")}
    first = fovea("warmup", "--model", model, "--json", "-", env=env)
    assert first.returncode == 0, first.stderr
    kernels = json.loads(first.stdout)["kernels"]
    functions = {f["name"] for kernel in kernels for f in kernel["functions"]}
    assert {"fovea_attention", "fovea_append", "fovea_merge_states"} <= functions
    assert all(kernel["origin"] == "compiled" for kernel in kernels)
    assert f"[{len(kernels)}/{len(kernels)}] " in first.stderr
    assert all(f["spill_store_bytes"] == 0 for kernel in kernels for f in kernel["functions"])
    second = fovea("warmup", "--model", str(ROOT / "models/needle"), env={**env, "FOVEA_NVRTC": "/nowhere"})
    assert second.returncode == 0 and f"0 kernels compiled, {len(kernels)} found" in second.stdout
    selecting = json.loads(fovea("warmup", "--model", model, "--select", "--json", "-", env=env).stdout)["kernels"]
    added = {f["name"] for kernel in selecting if kernel["origin"] == "compiled" for f in kernel["functions"]}
    assert added == {"fovea_select", "fovea_key_codes"}


def test_processes_that_warm_up_together_compile_once(tmp_path):
    command = [BINARY, "warmup", "--model", str(ROOT / "models/needle"), "--arch", "sm_80", "--json", "-"]
    env = {**os.environ, "FOVEA_CACHE_DIR": str(tmp_path)}
    processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
    outputs = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    kernels = [kernel for output in outputs for kernel in output["kernels"]]
    assert sum(kernel["origin"] == "compiled" for kernel in kernels) == len(kernels) // 3
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin"}


@pytest.mark.parametrize("arguments,code,says", [
    ([], 2, "--model is missing"), (["--model", "/nonexistent"], 1, "/nonexistent"),
    (["--model", "models/needle", "--arch", "sm_70"], 1, "sm_80 or later"),
    (["--model", "models/needle", "--arch", "hopper"], 1, "hopper")])
def test_warmup_says_what_is_wrong(arguments, code, says):
    arguments = [str(ROOT / a) if a.startswith("models/") else a for a in arguments]
    done = fovea("warmup", *arguments)
    assert done.returncode == code and says in done.stderr and not done.stdout


def test_warmup_without_a_compiler_or_a_folder(tmp_path):
    model = str(ROOT / "models/needle/config.json")
    done = fovea("warmup", "--model", model, env={"FOVEA_NVRTC": "/nowhere", "FOVEA_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 1 and "FOVEA_NVRTC is /nowhere" in done.stderr
    (tmp_path / "file").write_text("no folder")
    done = fovea("warmup", "--model", model, env={"FOVEA_CACHE_DIR": str(tmp_path / "file/below")})
    assert done.returncode == 1 and "FOVEA_CACHE_DIR" in done.stderr and not done.stdout


def doctor_states(**env):
    """What doctor says of each thing: (state, note)."""
    checks = json.loads(fovea("doctor", "--json", "-", env=env).stdout)["checks"]
    return {check["check"]: (check["state"], check["note"]) for check in checks}


def test_doctor_without_a_driver():
    found = doctor_states(FOVEA_LIBCUDA="/nowhere/libcuda.so.1", FOVEA_CUBLASLT="/nowhere")
    assert found["CUDA driver"][0] == "no" and "/nowhere/libcuda.so.1" in found["CUDA driver"][1]
    assert found["cuBLASLt"][0] == "no" and "/nowhere" in found["cuBLASLt"][1]
    assert "cuda:0" not in found


def test_doctor_with_a_device():
    fake = os.path.join(os.path.dirname(BINARY), "tests", "libfovea_fake_cuda.so")
    found = doctor_states(FOVEA_LIBCUDA=fake, FOVEA_CUBLASLT=fake)
    assert found["CUDA driver"] == ("13.0", fake)
    assert found["cuda:0"][0] == "yes" and "Fake H200, sm_90a, 132 SMs" in found["cuda:0"][1]
    assert found["cuBLASLt"] == ("13.1.0", fake)


def test_generate(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text(FACTS)
    done = fovea("generate", "--file", str(notes), "--question", "What is the code of the amber lantern?")
    assert done.returncode == 0 and "74912" in done.stdout and done.stdout.endswith("\n") and done.stderr == ""
    piped = fovea("generate", "--file", "-", "--question", "Who is the keeper of the northern gate?", "--json", "-", stdin=FACTS)
    answer = json.loads(piped.stdout)
    assert "Marisol" in answer["text"] and answer["finish_reason"] == "stop" and answer["completion_tokens"] > 3


def test_chat_keeps_the_conversation(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text(FACTS)
    done = fovea("chat", "--file", str(notes),
                 stdin="What is the code of the amber lantern?\nWho is the keeper of the northern gate?\n")
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert "74912" in first and "Marisol" in second


@pytest.mark.parametrize("line,says", [("/bogus", "/bogus"), ("/file", "needs the path"), ("/file /nonexistent", "/nonexistent"),
                                       ("/reset now", "no argument")])
def test_chat_refuses_what_is_no_command(line, says):
    done = fovea("chat", stdin=f"{line}\nWhat is the code of the amber lantern?\n")
    assert done.returncode in (1, 2) and says in done.stderr and not done.stdout


def test_chat_reads_files_and_forgets(tmp_path):
    notes = tmp_path / "my notes.txt"
    notes.write_text(FACTS)
    question = "What is the code of the amber lantern?"
    done = fovea("chat", stdin=f"/help\n/file {notes}\n{question}\n/reset\n/file {notes}\n{question}\n/quit\nnever read\n")
    assert done.returncode == 0 and [("74912" in line) for line in done.stdout.splitlines()] == [True, True]
    assert "/reset" in done.stderr


class Terminal:
    """A command that runs in a terminal of its own."""

    def __init__(self, *arguments, env):
        self.master, slave = pty.openpty()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FOVEA_")}
        self.process = subprocess.Popen([BINARY, *arguments], stdin=slave, stdout=slave, stderr=slave, close_fds=True,
                                        env={**clean, "TERM": "xterm", **env}, start_new_session=True)
        os.close(slave)
        self.text = ""

    def wait_for(self, text):
        while text not in self.text:
            assert select.select([self.master], [], [], 120)[0], self.text
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
        assert text in self.text, self.text
        self.text = self.text[self.text.index(text) + len(text):]

    def type(self, text):
        os.write(self.master, text.encode())

    def prompt(self):
        """Waits until a line can be typed: libedit shows its prompt before it switches the terminal to single characters, and
        what comes between the two is taken otherwise than it was typed."""
        self.wait_for("> ")
        for _ in range(2400):
            if not termios.tcgetattr(self.master)[3] & termios.ICANON:
                return
            time.sleep(0.05)
        raise AssertionError("the terminal stays with whole lines")

    def end(self):
        code = self.process.wait(timeout=120)
        os.close(self.master)
        return code


def test_chat_edits_lines_and_keeps_their_history(tmp_path):
    env = {"XDG_STATE_HOME": str(tmp_path)}
    chat = Terminal("chat", env=env)
    chat.prompt()
    chat.type("/bgus\x1b[D\x1b[D\x1b[Do\r")  # left, left, left
    chat.wait_for("there is no command /bogus")
    chat.prompt()
    chat.type("/quit\r")
    assert chat.end() == 0
    assert "/bogus" in (tmp_path / "fovea/chat_history").read_text()
    assert (tmp_path / "fovea/chat_history").stat().st_mode & 0o77 == 0
    again = Terminal("chat", env=env)
    again.prompt()
    again.type("\x1b[A\x1b[A\r")  # up, up: the line before the last one
    again.wait_for("there is no command /bogus")
    again.prompt()
    again.type("\x04")  # Ctrl-D
    assert again.end() == 0


@pytest.mark.parametrize("arguments,says", [
    (["chat", "Qwen/Qwen3-0.6B"], "hf download Qwen/Qwen3-0.6B"), (["serve", "x.gguf"], "GGUF"),
    (["generate", "-m", "some/model", "x"], "hf download some/model"), (["warmup", "some/model"], "hf download some/model")])
def test_models_of_other_kinds_get_the_next_step(arguments, says):
    done = fovea(*arguments)
    assert done.returncode != 0 and says in done.stderr and not done.stdout


def test_help_shows_defaults_and_only_what_the_command_needs():
    text = fovea("generate", "--help").stdout
    assert "--max-tokens VALUE" in text and "[256]" in text and "--[no-]prefix-cache" in text
    assert "{" not in text and "--max-queued" not in text and max(map(len, text.splitlines())) <= 120
    assert "--max-queued" in fovea("serve", "--help").stdout


def completed(*words):
    """What bash offers for the last of these words."""
    script = f"source <({BINARY} completion bash); COMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}; " \
             "_fovea; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_completion():
    assert completed("fovea", "ch") == ["chat"]
    assert set(completed("fovea", "bench", "")) == {"serve", "attention", "ops", "model", "plan"}
    assert completed("fovea", "serve", "--max-q") == ["--max-queued"]
    assert completed("fovea", "bench", "plan", "--req") == ["--requests"]
    assert "int4-hadamard" in completed("fovea", "serve", "--kv-dtype", "int")
    assert completed("fovea", "serve", "--model", "") == []  # files
    for shell in ("zsh", "fish"):
        script = fovea("completion", shell).stdout
        assert "kv-dtype" in script and "int4-hadamard" in script
    assert fovea("completion", "tcsh").returncode == 2


def test_demo_answers_about_a_file_and_hidden_facts(tmp_path):
    done = fovea("demo", "--tokens", "1500", "--facts", "16", "--questions", "2", "--together", "6", "--map-questions", "4",
                 "--seed", "5", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Answers    " in done.stdout and "KV read    " in done.stdout and "without sharing" in done.stdout
    guide = (tmp_path / "out" / "document.txt").read_text().splitlines()
    shown = [line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith("   line ")]
    assert len(shown) == 8
    for where, sentence in shown:
        assert sentence.strip('"') in guide[int(where.split()[1]) - 1]
    for picture in ("plan.svg", "needle.svg"):
        assert (tmp_path / "out" / picture).read_text().startswith("<svg")
    notes = tmp_path / "notes.txt"
    notes.write_text(FACTS)
    asked = fovea("demo", "--file", str(notes), "--question", "Who is the keeper of the northern gate?",
                  "--out", str(tmp_path / "out"))
    assert asked.returncode == 0 and "Marisol" in asked.stdout


def test_bench_lists_its_gpu_cases():
    done = fovea("bench", "attention", "--list", "--suite", "skew,prefix")
    cases = json.loads(done.stdout)["cases"]
    assert len(cases) == 83 and {case["suite"] for case in cases} == {"skew", "prefix"}
    assert all(sum(case["kv_lens"]) == 262144 for case in cases if case["suite"] == "skew")


TRACE = "".join(json.dumps({"timestamp": 40 * i, "input_length": 700, "output_length": 6, "hash_ids": [0, 10 + i]}) + "\n"
                for i in range(5))


def test_bench_serve_loads_a_server(tmp_path):
    done = fovea("bench", "serve", "--requests", "4", "--concurrency", "2", "--rate", "50", "--prompt-tokens", "32",
                 "--max-tokens", "8", "--choices", "1,2", "--idle-seconds", "0.5", "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"machine", "rows"}
    for row in report["rows"]:
        assert set(row) >= {"suite", "case", "metric", "value", "unit", "limit", "share", "peer", "peer_value"}
    metrics = {row["metric"]: row["value"] for row in report["rows"]}
    assert metrics["failed"] == 0 and metrics["ttft_p50"] > 0 and metrics["tpot_p50"] > 0
    assert {"first_answer", "idle_cpu"} <= set(metrics)
    assert {row["case"].split(" in ")[0] for row in report["rows"]} == {"start", "closed c=2", "poisson 50/s"}


@pytest.mark.parametrize("way", [["--in-process"], ["--idle-seconds", "0"]])
def test_bench_serve_replays_a_trace(way, tmp_path):
    trace, svg = tmp_path / "trace.jsonl", tmp_path / "load.svg"
    trace.write_text(TRACE)
    done = fovea("bench", "serve", *way, "--trace", str(trace), "--requests", "4", "--ttft-ms", "60000", "--tpot-ms", "0.0001",
                 "--json", "-", "--svg", str(svg))
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["case"] != "start"]
    assert {row["case"] for row in rows} == {"as in the trace trace"}
    metrics = {row["metric"]: row["value"] for row in rows}
    assert metrics["failed"] == 0 and metrics["goodput"] == 0 and metrics["good"] == 0
    assert metrics["cached"] > 40  # of 4 prompts of 700 tokens, 512 the same: 54.9 % at most
    assert svg.read_text().startswith("<svg") and svg.read_text().count("request ") == 8


def test_bench_serve_in_process_knows_its_roofline_and_its_steps(tmp_path):
    done = fovea("bench", "serve", "--in-process", "--requests", "6", "--prompt-tokens", "64", "--shared-tokens", "48",
                 "--max-tokens", "200", "--rate", "inf", "--read-rate", "100", "--timeline", str(tmp_path / "t.svg"), "--json", "-")
    assert done.returncode == 0, done.stderr
    step = [row for row in json.loads(done.stdout)["rows"] if row["metric"] == "step"]
    assert len(step) == 1 and step[0]["limit"] > 0 and 0 < step[0]["share"] < 1
    assert (tmp_path / "t.svg").read_text().count("<title>compute") == 6


@pytest.mark.parametrize("arguments,says", [
    (["--requests", "0"], "--requests"), (["--shared-tokens", "600"], "--shared-tokens"), (["--rate", "fast"], "--rate"),
    (["--rate", "-1"], "--rate"), (["--rate", "nan"], "--rate"), (["--rate", "trace"], "--trace"),
    (["--concurrency", "0"], "--concurrency"), (["--choices", "129"], "--choices"), (["--workload", "chats"], "sharegpt"),
    (["--length-scale", "0"], "--length-scale"), (["--length-scale", "nan"], "--length-scale"), (["--ttft-ms", "-1"], "--ttft-ms"),
    (["--tpot-ms", "nan"], "--tpot-ms"), (["--workload", "interrupted", "--concurrency", "2"], "--rate"),
    (["--url", "http://127.0.0.1:1"], "--url"), (["--workload", "agent", "--trace", "x"], "give one"),
    (["--json", "-", "--svg", "-"], "stdout"), (["--timeline", "-"], "a file"), (["--prompt-tokens", "1000000"], "do not fit"),
    (["--trace", "{trace}"], "line 2: timestamp"), (["--trace", "/dev/null"], "no request")])
def test_bench_serve_refuses_by_name(arguments, says, tmp_path):
    (tmp_path / "t.jsonl").write_text(TRACE.splitlines()[1] + "\n" + TRACE.splitlines()[0] + "\n")
    done = fovea("bench", "serve", "--in-process", *[argument.format(trace=tmp_path / "t.jsonl") for argument in arguments])
    assert done.returncode == 2 and says in done.stderr and not done.stdout, done.stderr


def test_serving_figures_are_made_of_bench_serves_json(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "bench/serving_gpu.py"), "--fovea", BINARY, "--model", "", "--device", "cpu",
                           "--scale", "0.05", "--only", "shared", "--out", str(tmp_path)],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 64 requests sharing 16k")]
    assert len(rows) == 1 and all(float(cell) > 0 for cell in rows[0].split("|")[2:6])
    report = json.loads((tmp_path / "h200-serving.json").read_text())["shared"]
    assert {row["metric"] for row in report["packing off"]["rows"]} >= {"step", "tpot_mean", "failed"}
