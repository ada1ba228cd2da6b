"""The web page's JSON API, and the requests that the server refuses: other routes, other files, too much."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch

import whence
from tests.support.command_line import run
from tests.support.visits import DIGIT, Server
from whence.app.json_api import explain_endpoint
from whence.app.limits import Limits
from whence.app.log import Log
from whence.app.model_registry import ModelRegistry
from whence.app.query import Query
from whence.app.service import ExplanationService
from whence.app.upload_cleanup import remove_oldest
from whence.models import MODELS

FILE = {"_type": "gradio.FileData"}
NAMED = (400, "Files are uploaded: neither an address nor a path is taken.")


@pytest.fixture(scope="module")
def models():
    return ModelRegistry.shipped()


@pytest.fixture(scope="module")
def server(models):
    started = Server(models, limits=Limits(characters=2000, pixels=1_000_000, upload=200_000))
    yield started
    started.stop()


def response_of(server, method, path, body=b"", headers=None):
    """The status and the words of an answer."""
    link = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=30)
    link.request(method, path, body, headers or {})
    response = link.getresponse()
    return response.status, response.read().decode(errors="replace")


def multipart(name, content):
    edge = "edge"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
    body = head.encode() + b"Content-Type: image/png\r\n\r\n" + content + f"\r\n--{edge}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={edge}"}


# -- programs --------------------------------------------------------------------------------------------------------


def test_programs_ask_by_one_request(server, tmp_path):
    asked = ["A superb film.", "", "gradient-x-input", "positive", "", ""]
    (found,) = server.post("/api/explain", {"data": asked})["data"]
    expected = whence.Explainer.from_pretrained(MODELS / "sentiment")("A superb film.", "gradient-x-input", "positive")
    (tmp_path / "found.json").write_text(json.dumps(found))
    e = whence.load(tmp_path / "found.json")
    torch.testing.assert_close(e.scores, expected.scores, rtol=1e-4, atol=1e-6)
    assert (e.method, e.target_names) == ("gradient-x-input", ("positive",))
    image = b64encode(DIGIT.read_bytes()).decode()
    (found,) = server.post("/api/explain", {"data": ["", "digits", "conservative-lrp", "", image, ""]})["data"]
    assert found["explanations"][0]["prediction_names"]
    (found,) = server.post("/api/explain", {"data": ["A film.", "", "nothing", "", "", ""]})["data"]
    assert found == {"error": "There is no method 'nothing'."}


def test_ten_people_at_once(server, tmp_path):
    from gradio_client import Client

    client = Client(server.address, verbose=False)
    texts = [f"{word} film, take {i}." for i in range(10) for word in ("A superb", "A dreadful")]
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda text: client.predict(text=text, api_name="/explain"), texts))
    for i, (text, one) in enumerate(zip(texts, found, strict=True)):
        (tmp_path / f"{i}.json").write_text(json.dumps(one))
        e = whence.load(tmp_path / f"{i}.json")
        assert e.origins[0]["text"].texts == (text,)
        assert e.prediction_names == ("positive" if "superb" in text else "negative",)
    health = json.loads(server.get("/health"))
    assert (health["serving"], health["waiting"]) == (0, 0)
    assert health["kept_bytes"] <= server.service.cache.max_bytes


def test_the_password_is_asked_for():
    server = Server(ModelRegistry.load([str(MODELS / "sentiment")]), auth=("ann", "s3cret"))
    try:
        assert json.loads(server.get("/health"))["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/api/explain", {"data": ["A film.", "", "conservative-lrp", "", "", ""]})
        assert refused.value.code == 401
        login = urllib.request.Request(server.address + "/login", b"username=ann&password=wrong")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(login)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(urllib.request.Request(server.address + "/login", b"username=ann&password=s3cret"))
        body = json.dumps({"data": ["A film.", "", "conservative-lrp", "", "", ""]}).encode()
        asked = urllib.request.Request(server.address + "/api/explain", body, {"Content-Type": "application/json"})
        assert "explanations" in json.loads(opener.open(asked).read())["data"][0]
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ"])
def test_no_file_of_the_machine_is_served(server, path):
    for way in (f"/gradio_api/file={path}", f"/file={path}", f"/gradio_api/file=../..{path}", f"/static/../../{path}"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get(way)
        assert refused.value.code in (403, 404)
    mine = Path(whence.__file__).as_posix()
    with pytest.raises(urllib.error.HTTPError):
        server.get(f"/gradio_api/file={mine}")


def test_the_browser_is_told_to_stay_here(server):
    with urllib.request.urlopen(server.address) as response:
        policy = response.headers["Content-Security-Policy"]
        page = response.read().decode()
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "fonts.googleapis" not in page


# -- the queue and defects of programs---------------------------------------------------------------------------------


def asking(host):
    return SimpleNamespace(client=SimpleNamespace(host=host))


def test_a_program_that_asks_much_waits_in_one_queue(models):
    """All that comes from one address is one visitor: the person at the page comes after the first of its questions."""
    log = io.StringIO()
    service = ExplanationService(models, log=Log(log))
    explain = explain_endpoint(service)
    texts = [f"A film, number {i}." for i in range(3)]
    with ThreadPoolExecutor(4) as pool:
        with service.queue.slot("someone"):
            asked = []
            for text in texts:
                asked.append(pool.submit(explain, asking("10.0.0.1"), text))
                while service.queue.waiting < len(asked):
                    time.sleep(0.001)
            mine = Query("sentiment", "Mine.")
            page = service.start("me", lambda task: service.answer("me", mine, task))
            while service.queue.waiting < 4:
                time.sleep(0.001)
        page.result()
        assert all("explanations" in one.result() for one in asked)
    order = [json.loads(line)["characters"] for line in log.getvalue().splitlines()]
    assert order == [len(texts[0]), len("Mine."), len(texts[1]), len(texts[2])]


def test_a_defect_is_a_sentence_for_programs_too(models, monkeypatch):
    log = io.StringIO()
    service = ExplanationService(models, log=Log(log))

    def fail(*_):
        raise KeyError(" ".join(["my", "secret"]))

    monkeypatch.setattr(service, "answer", fail)
    found = explain_endpoint(service)(asking("10.0.0.1"), "A film.")
    assert found == {
        "error": "Something went wrong in the server; it was written to its log. Try again, or another method."
    }
    assert '"KeyError"' in log.getvalue()
    assert "my secret" not in log.getvalue()


# -- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/proxy=http://127.0.0.1:9/x", "/gradio_api/file=http://127.0.0.1:9/x", "/monitoring",
     "/gradio_api/vibe-code", "/gradio_api/dev/reload", "/gradio_api/deep_link", "/gradio_api/runs", "/docs",
     "/gradio_api/custom_component/x/client/component/y", "/gradio_api/stream/a/b/0/playlist.m3u8", "/nothing"],
)  # fmt: skip
def test_routes_that_are_not_needed_are_not_served(server, path):
    assert response_of(server, "GET", path) == (404, "There is nothing here.")


class Other:
    """A server that must not be asked."""

    def __enter__(self):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def number_of(server, count):
    """Of the first of the page's functions with so many inputs."""
    config = json.loads(server.get("/config"))
    return next(d["id"] for d in config["dependencies"] if len(d["inputs"]) == count)


def joined(server, data, number, session):
    body = json.dumps({"data": data, "fn_index": number, "session_hash": session})
    return response_of(server, "POST", "/gradio_api/queue/join", body, {"Content-Type": "application/json"})


def test_nothing_is_fetched_for_anyone(server):
    with Other() as other:
        file = {"path": f"{other.address}/x.png", "meta": FILE}
        for data in ([file], [[{"deep": file}]], [{**file, "path": "file:///etc/passwd"}]):
            status, said = joined(server, data, number_of(server, 9), "thief")
            assert (status, said) == NAMED
        body = json.dumps({"data": [file, "", "", "", "", ""]}).replace("http:", "\\u0068ttp:")
        found = response_of(server, "POST", "/api/explain", body, {"Content-Type": "application/json"})
        assert found[0] == 400
        for way in (f"/gradio_api/file={other.address}/x.png", f"/gradio_api/proxy={other.address}/x.png"):
            assert response_of(server, "GET", way)[0] == 404
        assert other.asked == []


def test_no_path_of_the_machine_is_taken_for_a_picture(server):
    """A picture is a file that was uploaded, not one that a browser names."""
    (Path(server.folder.name) / "way-out.png").symlink_to(DIGIT)
    out = f"{server.folder.name}/../{Path(server.folder.name).name}-other/x.png"
    for path in ("/etc/passwd", str(DIGIT), "../../etc/passwd", out, f"{server.folder.name}/way-out.png", "\0"):
        data = ["digits", "", "", {"path": path, "meta": FILE}, ["conservative-lrp"], "the prediction", "", None, None]
        assert joined(server, data, number_of(server, len(data)), "thief") == NAMED


def test_more_than_the_limit_is_not_read(server):
    large = b"x" * 700_000
    assert response_of(server, "POST", "/api/explain", large) == (413, "Too large: 200,000 bytes at most.")
    assert (
        response_of(server, "POST", "/gradio_api/queue/join", iter([large]))[0] == 413
    )  # in pieces, its size not told
    body, headers = multipart("large.png", large)
    assert response_of(server, "POST", "/gradio_api/upload", body, headers) == (
        413,
        "Too large: 200,000 bytes at most.",
    )


def test_an_upload_stays_in_the_folder_whatever_its_name(server):
    for name in ("../../../evil.png", "/tmp/evil.png", "..%2f..%2fevil.png", "<b>evil</b>.png"):
        body, headers = multipart(name, DIGIT.read_bytes())
        status, said = response_of(server, "POST", "/gradio_api/upload", body, headers)
        assert status == 200
        (path,) = json.loads(said)
        assert Path(path).resolve().is_relative_to(Path(server.folder.name).resolve())
        assert response_of(server, "GET", f"/gradio_api/file={urllib.request.pathname2url(path)}")[0] == 200


def test_a_page_that_was_uploaded_does_not_run_here(server):
    body, headers = multipart("page.html", b"<script>boom()</script>")
    (path,) = json.loads(response_of(server, "POST", "/gradio_api/upload", body, headers)[1])
    with urllib.request.urlopen(f"{server.address}/gradio_api/file={path}") as response:
        assert response.headers["Content-Disposition"].startswith("attachment")
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_old_uploads_make_room(tmp_path):
    (tmp_path / "examples").mkdir()
    for i, name in enumerate(["examples/kept.png", "old.png", "new.png"]):
        (tmp_path / name).write_bytes(b"x" * 100)
        stamp = time.time() - 1000 + i
        os.utime(tmp_path / name, (stamp, stamp))
    assert remove_oldest(tmp_path, max_bytes=150, exclude=tmp_path / "examples") == 100
    assert sorted(p.name for p in tmp_path.rglob("*.png")) == ["kept.png", "new.png"]
    assert remove_oldest(tmp_path / "absent") == 0


def test_it_ends_when_it_is_told_though_pages_are_open():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "whence", "serve", "--model", str(MODELS / "digits"), "--port", str(port)]
    running = subprocess.Popen(words, stderr=subprocess.PIPE)
    try:
        deadline = time.time() + 120
        while time.time() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/gradio_api/heartbeat/me", timeout=30)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
        page.close()
    finally:
        running.kill()
    lines = [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == ["start", "stop"]


def test_whoever_opens_it_to_others_is_warned(monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr("whence.app.serve.serve", lambda service, host, port, known: served.append((host, known)))
    said = run("serve", "--host", "0.0.0.0", "--port", "0").stderr
    assert "can be reached from other machines at 0.0.0.0. Anyone who reaches it can use it: --auth" in said
    (tmp_path / "secret").write_text("s3cret")
    said = run("serve", "--host", "0.0.0.0", "--port", "0", "--auth", f"ann:{tmp_path / 'secret'}").stderr
    assert "can be reached" in said
    assert "Anyone" not in said
    assert "s3cret" not in said
    said = run("serve", "--port", "0").stderr
    assert "can be reached" not in said
    assert served == [("0.0.0.0", None), ("0.0.0.0", ("ann", "s3cret")), ("127.0.0.1", None)]


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "[bad", "10.0.0.7", ""])
def test_a_foreign_name_for_this_machine_is_refused(server, name):
    """A page from elsewhere may have its name point here, and would then read what is answered."""
    said = (421, "This page is for this machine alone: open it at 127.0.0.1 or localhost.")
    assert response_of(server, "GET", "/health", headers={"Host": name}) == said


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1:7860", "[::1]:80", "localhost:1"])
def test_the_names_of_this_machine_are_answered(server, name):
    assert response_of(server, "GET", "/health", headers={"Host": name})[0] == 200
