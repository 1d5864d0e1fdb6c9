"""`fovea serve --tls-cert --tls-key`, as Python's ssl and clients over it see it."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess

import httpx2  # what openai sends with
import openai
import pytest

from test_openai import BINARY, CODE, Server, ask


def make_certificate(folder, name, *options):
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert),
                    *(options or ["-nodes"])], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return folder, *make_certificate(folder, "own")


@pytest.fixture(scope="module")
def server(files):
    _, cert, key = files
    one = Server("--tls-cert", str(cert), "--tls-key", str(key), "--kv-cache-mib", "64")
    assert one.url.startswith("https://127.0.0.1:")
    yield one
    assert one.stop() == 0


def trusting(cert):
    return ssl.create_default_context(cafile=str(cert))


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


def connect(server, context):
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port_of(server)), 20), server_hostname="127.0.0.1")


def read_to_end(one):
    data = b""
    while piece := one.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_handshake_and_two_requests_on_a_connection(server, files, version):
    context = trusting(files[1])
    context.minimum_version = context.maximum_version = version
    with connect(server, context) as one:
        assert one.version() == ("TLSv1.2" if version == ssl.TLSVersion.TLSv1_2 else "TLSv1.3")
        for _ in range(2):
            one.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200 OK")
        # The end is said, not cut: a client that insists on it sees no error.
        one.suppress_ragged_eofs = False
        one.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'"version"' in read_to_end(one)


def test_who_does_not_trust_it_leaves(server):
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, ssl.create_default_context())
    with pytest.raises((ssl.SSLError, ConnectionError)):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        connect(server, old)


def test_openai_client_whole_and_streamed(server, files):
    with httpx2.Client(verify=trusting(files[1])) as http:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", http_client=http, max_retries=0)
        model = client.models.list().data[0].id
        assert "74912" in ask(client, model, CODE).choices[0].message.content
        text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, model, CODE, stream=True))
        assert "74912" in text
        long = client.completions.create(model=model, prompt=[5] * 3000, max_tokens=1, echo=True, logprobs=3)
        assert len(long.choices[0].logprobs.tokens) == 3001  # an answer of many records


def test_a_client_that_leaves_frees_its_request(server, files):
    with httpx2.Client(verify=trusting(files[1]), base_url=server.url) as http:
        body = {"prompt": [5] * 8, "max_tokens": 100000, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        for _ in range(200):
            running = re.search(r"^fovea_requests_running (\d+)", http.get("/metrics").text, re.M).group(1)
            if running == "0":
                return
        raise AssertionError("the request still runs")


def doctor(url, *arguments, **environment):
    done = subprocess.run([BINARY, "doctor", "--server", url, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=os.environ | environment)
    return done.returncode, done.stdout + done.stderr


def test_the_doctor_looks_at_it_over_tls(server, files):
    folder, cert, _ = files
    for arguments, environment in ((["--ca-file", cert], {}), ([], {"SSL_CERT_FILE": str(cert)})):
        code, answer = doctor(server.url, *arguments, **environment)
        assert code == 0 and "healthy" in answer, answer


def test_the_doctor_says_why_it_does_not_trust_a_server(server, files):
    folder, cert, _ = files
    other, _ = make_certificate(folder, "stranger")
    port = port_of(server)
    for url, arguments, said in (
            (server.url, [], "its certificate is not trusted"),
            (server.url, ["--ca-file", other], "stranger.crt does not hold its authority"),
            (f"https://localhost:{port}", ["--ca-file", cert], "its certificate is for 127.0.0.1; ask it by one of these names"),
            (server.url, ["--ca-file", folder / "none.crt"], "none.crt: No such file"),
            (server.url, ["--ca-file", folder / "own.key"], "own.key: it holds no certificate"),
            (f"http://127.0.0.1:{port}", ["--ca-file", cert], "--ca-file is for https://"),
            ("", ["--ca-file", cert], "--ca-file is for --server")):
        code, answer = doctor(url, *arguments)
        assert code != 0 and said in answer, answer


def test_the_doctor_ends_where_nobody_speaks_tls():
    plain = Server("--kv-cache-mib", "64")
    code, answer = doctor(plain.url.replace("http:", "https:"))
    assert plain.stop() == 0
    assert code != 0 and "it does not speak TLS; try http://" in answer
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        code, answer = doctor(f"https://127.0.0.1:{silent.getsockname()[1]}")
    assert code != 0 and "no TLS handshake: it does not answer" in answer


def test_plain_http_is_told_and_does_not_hang(server):
    with socket.create_connection(("127.0.0.1", port_of(server)), 20) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_to_end(one)
        assert answer.startswith(b"HTTP/1.1 400") and b"https://" in answer


@pytest.mark.parametrize("bytes_", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 nonsense", b"\x16" * 4096, b"\x16"])
def test_nonsense_ends_the_connection_alone(server, files, bytes_):
    with socket.create_connection(("127.0.0.1", port_of(server)), 20) as one:
        one.sendall(bytes_)
        one.shutdown(socket.SHUT_WR)
        read_to_end(one)
    with connect(server, trusting(files[1])):
        pass


def test_a_renewed_certificate_is_read_again(tmp_path):
    cert, key = make_certificate(tmp_path, "own")
    one = Server("--tls-cert", str(cert), "--tls-key", str(key), "--kv-cache-mib", "64")
    try:
        first = trusting(cert)
        with connect(one, first):
            pass
        # What cannot be used changes nothing.
        kept = cert.read_text()
        cert.write_text("nothing")
        one.process.send_signal(signal.SIGHUP)
        with connect(one, first):
            pass
        cert.write_text(kept)
        other, other_key = make_certificate(tmp_path, "other")
        shutil.copy(other_key, key)
        shutil.copy(other, cert)
        one.process.send_signal(signal.SIGHUP)
        for _ in range(100):
            try:
                with connect(one, trusting(cert)):
                    break
            except ssl.SSLCertVerificationError:
                continue
        with connect(one, trusting(cert)), pytest.raises(ssl.SSLCertVerificationError):
            connect(one, first)
    finally:
        assert one.stop() == 0


def refusal(*arguments):
    done = subprocess.run([BINARY, "serve", "--port", "0", *map(str, arguments)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and done.stdout == ""
    return done.stderr


def test_wrong_files_are_refused_by_name_before_anything_is_served(files):
    folder, cert, key = files
    _, other_key = make_certificate(folder, "other")
    _, locked = make_certificate(folder, "locked", "-passout", "pass:secret")
    empty = folder / "empty.pem"
    empty.touch()
    pipe = folder / "pipe.pem"  # that nobody writes to
    os.mkfifo(pipe)
    for arguments, said in (
            (["--tls-cert", cert], "--tls-cert is given without --tls-key"),
            (["--tls-key", key], "--tls-key is given without --tls-cert"),
            (["--tls-cert", folder / "none.crt", "--tls-key", key], "none.crt: No such file or directory"),
            (["--tls-cert", cert, "--tls-key", folder], "--tls-key"),
            (["--tls-cert", empty, "--tls-key", key], "empty.pem: the file is empty"),
            (["--tls-cert", cert, "--tls-key", pipe], "pipe.pem: it is no file"),
            (["--tls-cert", key, "--tls-key", key], "own.key: it holds no certificate"),
            (["--tls-cert", cert, "--tls-key", cert], "own.crt: it holds no private key"),
            (["--tls-cert", cert, "--tls-key", other_key], "other.key: the key is not that of the certificate in"),
            (["--tls-cert", cert, "--tls-key", locked], "locked.key: the key has a passphrase")):
        assert said in refusal(*arguments), arguments


def test_a_certificate_that_has_expired_is_served_and_said_once(files):
    folder, _, key = files
    request, cert, rules, index = (folder / f"old.{kind}" for kind in ("csr", "crt", "cnf", "txt"))
    index.touch()
    rules.write_text(f"[ca]\ndefault_ca=own\n[own]\ndatabase={index}\nnew_certs_dir={folder}\nrand_serial=yes\n"
                     "default_md=sha256\npolicy=any\nx509_extensions=names\n[names]\nsubjectAltName=IP:127.0.0.1\n[any]\ncommonName=supplied\n")
    for command in (["req", "-new", "-key", key, "-subj", "/CN=localhost", "-out", request],
                    ["ca", "-config", rules, "-batch", "-selfsign", "-keyfile", key, "-in", request, "-out", cert, "-notext",
                     "-startdate", "20200101000000Z", "-enddate", "20210101000000Z"]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    command = [BINARY, "serve", "--port", "0", "--kv-cache-mib", "64", "--tls-cert", cert, "--tls-key", key]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    url = re.search(r"https://[0-9.:]+", line).group()
    code, answer = doctor(url, "--ca-file", cert)
    assert code != 0 and "has expired (Jan  1 00:00:00 2021 GMT); renew it" in answer
    server.terminate()
    _, said = server.communicate(timeout=60)
    assert server.returncode == 0 and said.count("old.crt: the certificate has expired") == 1
