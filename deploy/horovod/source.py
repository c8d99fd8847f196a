"""Horovod's source: fetched by name and version with a checked hash, unpacked afresh, and patched for TensorFlow 2.21."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


class BuildError(RuntimeError):
    """Horovod cannot be built or installed; the message is one line for the user."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """`old`, which stands exactly once in `file`, becomes `new`."""

    file: str
    old: str
    new: str
    why: str


_PLAIN = '''

class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data, classes):
        super().__init__(io.BytesIO(data))
        self._classes = {(c.__module__, c.__qualname__): c for c in classes}

    def find_class(self, module, name):
        if (module, name) not in self._classes:
            raise pickle.UnpicklingError('{}.{} is not expected here'.format(module, name))
        return self._classes[module, name]


def loads_plain(data, classes=()):
    """Numbers, texts, bytes, tuples, lists and dicts, and objects of these classes alone."""
    return _PlainUnpickler(data, classes).load()
'''

_PLAIN_CLIENT = """\
    def _probe(self, addresses):
        from horovod.runner.common.util import codec
        answers = (network.PingResponse, network.AckResponse)
        self._wire = network.Wire(self._wire._key, lambda message: codec.loads_plain(message, answers))
        return super()._probe(addresses)

"""

PATCHES = (
    Patch(
        file="horovod/tensorflow/CMakeLists.txt",
        old='list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        new="",
        why="the bridge to XLA includes headers that moved in TensorFlow 2.16; without XLA nothing calls it",
    ),
    Patch(
        file="horovod/tensorflow/mpi_ops.cc",
        old="GpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        new="template <typename S>\nGpuStreamHandle AsGpuStreamValue(S* stream) {\n"
        "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n}\n",
        why="builds for GPUs only: TensorFlow no longer has this function; the stream itself tells its handle",
    ),
    Patch(
        file="horovod/runner/common/util/codec.py",
        old="import base64\nimport pickle\nimport cloudpickle\n",
        new="import base64\nimport io\nimport pickle\nimport cloudpickle\n" + _PLAIN,
        why="the launcher of an elastic job unpickles what strangers may send: a way to read it that runs nothing",
    ),
    Patch(
        file="horovod/runner/elastic/rendezvous.py",
        old="codec.loads_base64(value)",
        new="codec.loads_plain(codec.base64.b64decode(value))",
        why="anybody can put an address of a rank into the launcher's store",
    ),
    Patch(
        file="horovod/runner/common/util/network.py",
        old="    def __init__(self, key):\n        self._key = key\n",
        new="    def __init__(self, key, loads=cloudpickle.loads):\n        self._key, self._loads = key, loads\n",
        why="as above: how a connection reads messages becomes its own matter",
    ),
    Patch(
        file="horovod/runner/common/util/network.py",
        old="        return cloudpickle.loads(message)\n",
        new="        return self._loads(message)\n",
        why="as above",
    ),
    Patch(
        file="horovod/runner/elastic/worker.py",
        old="    def notify_hosts_updated(self, timestamp, update_res):\n",
        new=_PLAIN_CLIENT + "    def notify_hosts_updated(self, timestamp, update_res):\n",
        why="who put an address and a key there answers the launcher with a message that bears that key",
    ),
)


def prepared(folder: Path) -> Path:
    """Fetches, unpacks and patches below the empty `folder`. Returns the root of the source; BuildError if a step fails."""
    root = unpack(fetch(folder), folder)
    for patch in PATCHES:
        apply(patch, root)
    return root


def fetch(folder: Path) -> Path:
    """Downloads the source package from the package index that pip is configured for, with pip's check of its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = [
        *(
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--no-deps",
            "--no-binary",
            "horovod",
        ),
        *("--no-build-isolation", "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = sorted(folder.glob("horovod-*.tar.gz"))
    if done.returncode or not found:
        raise BuildError(f"cannot fetch the source of horovod=={VERSION}: {_complaint(done.stderr)}; check pip's index")
    return found[0]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks into `folder`: always anew, since a tree that was built in once cannot be built in again."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)  # Python before 3.11.4; the hash was checked
    return folder / f"horovod-{VERSION}"


def apply(patch: Patch, root: Path) -> None:
    """BuildError unless the text to replace stands in the file exactly once: then this is not the source we know."""
    path = root / patch.file
    text = path.read_text() if path.is_file() else ""
    count = text.count(patch.old)
    if count != 1:
        raise BuildError(
            f"{patch.file}: found {count} times {patch.old.strip()!r}, expected it once; this is not the source of "
            f"horovod {VERSION} that the patches in deploy/horovod/source.py were made for"
        )
    path.write_text(text.replace(patch.old, patch.new))


def _complaint(stderr: str) -> str:
    """The line of pip's output that says most: its first error, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines[-1:] or ["pip said nothing"])[0]
