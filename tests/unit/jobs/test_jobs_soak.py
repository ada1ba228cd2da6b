"""Runs that are killed at random moments, many times, on both engines; a cluster that loses a node."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import whence
from tests.support.jobs import SENTIMENT, rows, texts

pytestmark = pytest.mark.slow
KILLS = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("soak") / "texts.txt"
    path.write_text("\n".join(texts(3000)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(data):
    out = data.parent / "whole"
    whence.run(data, str(SENTIMENT), out=out, shard_size=16, batch_size=8, workers=1)
    return rows(out)


def begin(data, out, engine, *more):
    command = [sys.executable, "-W", "ignore", "-m", "whence", "run", str(data), "--model", str(SENTIMENT)]
    command += ["--out", str(out), "--engine", engine, "--workers", "2", "--shard-size", "16", "--batch-size", "8"]
    return subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, start_new_session=True)


def workers(session):
    """The processes of a session that hold a model, by what they are called."""
    out = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            line = (stat.parent / "cmdline").read_bytes()
            if int(stat.read_text().rsplit(")", 1)[1].split()[3]) == session and (
                b"spawn_main" in line or b"MapBatches" in line
            ):
                out.append(int(stat.parent.name))
        except (OSError, IndexError):
            continue
    return out


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("who", ["driver", "worker"])
def test_kills_at_random_moments_lose_nothing(data, undisturbed, tmp_path, engine, who):
    draw, out, killed = random.Random(f"{engine} {who}"), tmp_path / "out", 0
    running = begin(data, out, engine)
    while killed < KILLS:
        time.sleep(draw.uniform(0.5, 12.0 if who == "driver" else 3.0))  # a driver has to begin anew first
        if running.poll() is not None:
            if running.returncode == 0 and len(rows(out)) == len(undisturbed):
                break
        elif who == "driver":
            os.killpg(running.pid, signal.SIGKILL) if engine == "ray" else running.kill()
            running.wait()
            killed += 1
        else:
            there = workers(running.pid)
            if there:
                os.kill(draw.choice(there), signal.SIGKILL)
                killed += 1
            continue
        running = begin(data, out, engine, *(["--resume"] if (out / "manifest.json").exists() else []))
    if running.wait() != 0:
        running = begin(data, out, engine, "--resume")
        assert running.wait() == 0, running.stderr.read()
    assert killed >= 5, "the run was over before it was disturbed"
    assert rows(out) == undisturbed


def test_a_cluster_that_loses_a_node_ends_complete(data, undisturbed, tmp_path):
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        lost = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        running = begin(data, tmp_path / "out", "ray", "--address", cluster.address)
        end = time.monotonic() + 300
        while len(list((tmp_path / "out" / "rows").glob("part-*"))) < 20:
            assert time.monotonic() < end
            assert running.poll() is None, running.stderr.read()
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)
        assert running.wait() == 0, running.stderr.read()
    finally:
        cluster.shutdown()
    assert rows(tmp_path / "out") == undisturbed


def test_a_full_disk_is_a_sentence(data, undisturbed, tmp_path):
    """A real one, of 300 kilobytes, where this machine lets us make it."""
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", small], check=False).returncode
    ):
        pytest.skip("a small file system needs the rights to mount one")
    try:
        running = begin(data, small / "out", "local")
        assert running.wait() == 1
        said = running.stderr.read()
        assert "the disk is full" in said
        whole = {row["id"]: row for row in undisturbed}
        assert all(row == whole[row["id"]] for row in rows(small / "out"))
        subprocess.run(["mount", "-o", "remount,size=50m", small], check=True)
        running = begin(data, small / "out", "local", "--resume")
        assert running.wait() == 0, running.stderr.read()
        assert rows(small / "out") == undisturbed
    finally:
        subprocess.run(["umount", small], check=False)
