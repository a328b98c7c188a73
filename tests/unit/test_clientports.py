"""The connections of a process tree are found in /proc as a server sees them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockctl.migrations import clientports
from lockctl.migrations.clientports import Connection

pytestmark = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's /proc")

# A grandchild connects, says so, and ends when it reads.
_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    print(there.getsockname()[1], flush=True)
    sys.stdin.read()
"""
_PARENT = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_grandchild_s_connection_is_found_by_address_and_port(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listening:
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not there")
        listening.listen()
        port = listening.getsockname()[1]
        words = [sys.executable, "-c", _PARENT, _CONNECT, address, str(port)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdin is not None
            own = int(parent.stdout.readline())
            accepted, _ = listening.accept()
            with accepted:
                assert clientports.of(parent.pid) == {Connection(address, own, port)}
                assert Connection(address, own, port) in clientports.of(os.getpid())
                parent.stdin.close()
                parent.wait(10)
            assert clientports.of(parent.pid) == set()


def test_the_tree_has_descendants_and_nobody_else() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert clientports.tree(child.pid) == [child.pid]
        assert child.pid in clientports.tree(os.getpid())
        assert os.getppid() not in clientports.tree(child.pid)
        child.kill()
