"""`fovea serve --kv-store` and `--kv-spill-gib`: a restart keeps prefixes and their answers, a server killed while it
writes leaves a store that serves, and prefixes that a small cache gave up come back."""

import json
import random
import signal
import urllib.request

from test_openai import Server, wait_until


def prompt_of(number, tokens=3000):
    source = random.Random(number)
    return [source.randrange(10, 300) for _ in range(tokens)]


def ask(server, prompt):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        result = json.loads(answer.read())
    return result["choices"][0]["text"], result["usage"]["prompt_tokens_details"]["cached_tokens"]


def moves(server, move):
    return server.metric(f'fovea_kv_tier_moves_total{{move="{move}"}}')


def test_a_restart_keeps_prefixes(tmp_path):
    store = str(tmp_path / "store")
    server = Server("--kv-store", store)
    answers = [ask(server, prompt_of(i)) for i in range(2)]
    assert [cached for _, cached in answers] == [0, 0]
    assert server.stop() == 0
    server = Server("--kv-store", store)
    for i, (text, _) in enumerate(answers):
        again, cached = ask(server, prompt_of(i))
        assert again == text
        assert cached > 2900
    assert moves(server, "read") > 0 and server.metric("fovea_kv_store_errors_total") == 0
    view = json.loads(server.get("/engine.json"))["kv"]
    assert view["store"]["pages"] > 300 and view["restored_pages"] > 300
    assert server.stop() == 0


def test_killed_while_it_writes(tmp_path):
    store = tmp_path / "store"
    texts = {}
    for round_number in range(3):
        server = Server("--kv-store", str(store))
        for i in range(3 * round_number + 3):
            text, _ = ask(server, prompt_of(i, 2000))
            assert texts.setdefault(i, text) == text
        assert wait_until(lambda server=server: moves(server, "written") > 0 or moves(server, "restored") > 0)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
    server = Server("--kv-store", str(store))
    found = 0
    for i, text in texts.items():
        again, cached = ask(server, prompt_of(i, 2000))
        assert again == text
        found += cached > 0
    assert found > 0
    assert server.metric("fovea_kv_store_errors_total") == 0
    assert server.stop() == 0
    assert not list(store.rglob("*.tmp"))


def test_garbage_in_the_folder_costs_a_recomputation(tmp_path):
    store = tmp_path / "store"
    server = Server("--kv-store", str(store))
    text, _ = ask(server, prompt_of(0))
    assert server.stop() == 0
    files = list(store.rglob("*.kv"))
    assert files
    source = random.Random(5)
    for path in files:
        with path.open("r+b") as file:
            for _ in range(200):
                file.seek(source.randrange(path.stat().st_size))
                file.write(bytes([source.randrange(256)]))
    server = Server("--kv-store", str(store))
    assert ask(server, prompt_of(0))[0] == text
    assert server.metric("fovea_kv_store_errors_total") > 0
    assert ask(server, prompt_of(0)) == (text, 2992)  # cached again
    assert server.stop() == 0


def test_two_servers_of_one_folder(tmp_path):
    store = str(tmp_path / "store")
    first = Server("--kv-store", store)
    text, _ = ask(first, prompt_of(0))
    assert wait_until(lambda: moves(first, "written") > 180)
    second = Server("--kv-store", store)  # reads what is there
    assert ask(second, prompt_of(0)) == (text, 2992)
    ask(second, prompt_of(1))
    assert second.stop() == 0
    assert ask(first, prompt_of(1))[1] == 0
    assert first.stop() == 0
    third = Server("--kv-store", store)
    assert ask(third, prompt_of(0))[1] == 2992
    assert third.metric("fovea_kv_store_errors_total") == 0
    assert third.stop() == 0


def test_a_small_cache_spills(tmp_path):
    server = Server("--kv-spill-gib", "1", "--kv-cache-mib", "32", "--max-context", "4096")
    texts = [ask(server, prompt_of(i))[0] for i in range(6)]
    before = moves(server, "spilled")
    assert before > 0
    cached = 0
    for i, text in enumerate(texts):
        again, found = ask(server, prompt_of(i))
        assert again == text
        cached += found > 2900
    assert cached == 6
    assert moves(server, "restored") > 0
    assert server.stop() == 0
