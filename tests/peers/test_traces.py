"""`fovea serve --otlp-endpoint`: the spans that a collector gets, and a server that does not care whether there is one."""

import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from test_openai import BINARY, Server
from test_tls import make_certificate

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes what is posted to /v1/traces; its first answers may be others than 200."""

    def __init__(self, *answers, path="/v1/traces", certificate=None):
        self.bodies, self.answers, self.changed = [], list(answers), threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                assert self.path == path and self.headers["Content-Type"] == "application/json"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.changed:
                    status = outer.answers.pop(0) if outer.answers else 200
                    outer.bodies.append((status, body))
                    outer.changed.notify_all()
                said = b'{"partialSuccess":{}}'
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"http{'' if certificate is None else 's'}://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def spans(self):
        return [span for status, body in self.bodies if status == 200 for resource in body["resourceSpans"]
                for scope in resource["scopeSpans"] for span in scope["spans"]]

    def wait(self, count, seconds=20):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans()) >= count, seconds), self.bodies
            return self.spans()


def post(server, path, body, **headers):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def attributes(span):
    def plain(value):
        (kind, what), = value.items()
        return [plain(one) for one in what["values"]] if kind == "arrayValue" else int(what) if kind == "intValue" else what
    return {one["key"]: plain(one["value"]) for one in span["attributes"]}


def counted(server, name, count):
    deadline = time.monotonic() + 20
    while (value := server.metric(name)) != count:
        assert time.monotonic() < deadline, value
        time.sleep(0.02)


BODY = {"prompt": [5] * 40, "max_tokens": 6, "ignore_eos": True, "temperature": 0.5}


def test_a_request_and_its_parts():
    collector = Collector()
    server = Server("--otlp-endpoint", collector.url + "/", "--otlp-service", "mine", "--kv-cache-mib", "64")
    begin = time.time_ns()
    answer = post(server, "/v1/completions", BODY, **{"x-request-id": "abc"})
    spans = collector.wait(4)
    end = time.time_ns()
    names = {span["name"]: span for span in spans}
    root = names[f"text_completion {answer['model']}"]
    assert set(names) == {root["name"], "queue", "prefill", "decode"} and root["kind"] == 2 and "parentSpanId" not in root
    assert len({span["traceId"] for span in spans}) == 1 and len({span["spanId"] for span in spans}) == 4
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in spans)
    parts = [names["queue"], names["prefill"], names["decode"]]
    assert all(part["parentSpanId"] == root["spanId"] and part["kind"] == 1 for part in parts)
    times = [int(root["startTimeUnixNano"]), *(int(part["startTimeUnixNano"]) for part in parts), int(root["endTimeUnixNano"])]
    assert times == sorted(times) and begin - 10**7 <= times[0] and times[-1] <= end
    assert parts[0]["endTimeUnixNano"] == parts[1]["startTimeUnixNano"]
    assert parts[1]["endTimeUnixNano"] == parts[2]["startTimeUnixNano"] and parts[2]["endTimeUnixNano"] == root["endTimeUnixNano"]
    said = attributes(root)
    assert said.items() >= {
        "gen_ai.operation.name": "text_completion", "gen_ai.request.model": answer["model"], "gen_ai.response.id": answer["id"],
        "gen_ai.request.max_tokens": 6, "gen_ai.request.temperature": 0.5, "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 6, "gen_ai.response.finish_reasons": ["length"], "http.request.method": "POST",
        "url.path": "/v1/completions", "http.response.status_code": 200, "fovea.request.id": "abc"}.items()
    resource = collector.bodies[0][1]["resourceSpans"][0]["resource"]
    assert attributes(resource)["service.name"] == "mine"
    counted(server, "fovea_trace_spans_total", 4)
    assert server.metric("fovea_trace_requests_dropped_total") == 0
    assert server.stop() == 0


def test_the_callers_trace_goes_on():
    collector = Collector()
    server = Server("--otlp-endpoint", collector.url, "--kv-cache-mib", "64")
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    for header in (f"00-{TRACE}-{PARENT}-00", "nonsense", f"00-{TRACE}-{PARENT}-01"):
        post(server, "/v1/chat/completions", chat, traceparent=header, tracestate="a=b")
    with pytest.raises(urllib.error.HTTPError):
        post(server, "/v1/chat/completions", {**chat, "top_p": 7}, traceparent=f"00-{TRACE}-{PARENT}-01")
    spans = collector.wait(9)
    assert server.stop() == 0
    assert len(collector.spans()) == 9  # nothing of who does not sample
    mine = [span for span in spans if span["traceId"] == TRACE]
    roots = [span for span in mine if span["kind"] == 2]
    assert [span["name"] for span in roots] == ["chat needle", "POST /v1/chat/completions"]
    assert all(span["parentSpanId"] == PARENT for span in roots) and roots[0]["traceState"] == "a=b"
    assert attributes(roots[1]).items() >= {"http.response.status_code": 400, "error.type": "400"}.items()
    assert "code" not in roots[1]["status"]  # the client's error
    other = [span for span in spans if span["traceId"] != TRACE]
    assert len(other) == 4 and all("traceState" not in span for span in other)
    assert "parentSpanId" not in next(span for span in other if span["kind"] == 2)


def test_what_a_collector_puts_off_is_sent_again():
    collector = Collector(503, 429)
    server = Server("--otlp-endpoint", collector.url, "--kv-cache-mib", "64")
    post(server, "/v1/completions", BODY)
    assert len(collector.wait(4)) == 4
    assert [status for status, _ in collector.bodies] == [503, 429, 200]
    assert collector.bodies[0][1] == collector.bodies[2][1]
    assert server.stop() == 0


def test_what_it_refuses_is_dropped_and_counted():
    collector = Collector(400, path="/below/v1/traces")
    server = Server("--otlp-endpoint", collector.url + "/below", "--kv-cache-mib", "64")
    post(server, "/v1/completions", BODY)
    counted(server, "fovea_trace_requests_dropped_total", 1)
    post(server, "/v1/completions", BODY)
    collector.wait(4)
    assert server.metric("fovea_trace_requests_dropped_total") == 1
    assert server.stop() == 0


def test_at_the_end_what_waits_is_sent():
    collector = Collector()
    server = Server("--otlp-endpoint", collector.url, "--kv-cache-mib", "64")
    post(server, "/v1/completions", BODY)
    assert server.stop() == 0
    assert len(collector.spans()) == 4


def test_a_collector_behind_tls(tmp_path):
    certificate = make_certificate(tmp_path, "own")
    collector = Collector(path="/below/v1/traces", certificate=certificate)
    server = Server("--otlp-endpoint", collector.url + "/below/", "--otlp-ca-file", str(certificate[0]), "--kv-cache-mib", "64")
    post(server, "/v1/completions", BODY)
    assert len(collector.wait(4)) == 4
    assert server.stop() == 0


def test_a_collector_that_is_not_trusted_gets_nothing(tmp_path):
    collector = Collector(certificate=make_certificate(tmp_path, "own"))
    server = Server("--otlp-endpoint", collector.url, "--kv-cache-mib", "64")
    post(server, "/v1/completions", BODY)
    assert server.stop() == 0
    assert collector.bodies == []


@pytest.mark.parametrize("silent", [True, False])
def test_serving_goes_on_whatever_the_collector_does(silent):
    """One takes connections and never answers, one is not there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen(8)
        server = Server("--otlp-endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}", "--kv-cache-mib", "64")
        for _ in range(30):
            assert post(server, "/v1/completions", BODY)["usage"]["completion_tokens"] == 6
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 20


def test_an_answer_without_an_end_is_not_kept():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)

        def answer():
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    one.sendall(b"fffff\r\n" + b"x" * 0xfffff + b"\r\n")
        endless = threading.Thread(target=answer, daemon=True)
        endless.start()
        server = Server("--otlp-endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}", "--kv-cache-mib", "64")
        post(server, "/v1/completions", BODY)
        endless.join(30)  # ends as the server closes the connection
        assert not endless.is_alive()
        assert server.stop() == 0


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1:4318", "127.0.0.1:4318", "http://", "http://a b:1/", "http://h:99999",
                                      "http://127.0.0.1:4318/?x=1"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    done = subprocess.run([BINARY, "serve", "--port", "0", "--otlp-endpoint", endpoint], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--otlp-endpoint" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("endpoint, said", [("http://127.0.0.1:4318", "--otlp-ca-file is for https://"),
                                            ("https://127.0.0.1:4318", "none.pem: No such file")])
def test_authorities_that_cannot_be_used_are_refused(tmp_path, endpoint, said):
    done = subprocess.run([BINARY, "serve", "--port", "0", "--otlp-endpoint", endpoint, "--otlp-ca-file", tmp_path / "none.pem"],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""
