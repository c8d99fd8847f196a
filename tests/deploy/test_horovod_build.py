"""`make horovod`: the right source, patched, compiled once, kept whole, installed. The compiler is a stand-in here, apart
from the last test, which tries out the wheel that `make horovod` left in the cache of this machine."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import pytest
import yaml

from deploy.horovod import build, recipe, source
from deploy.horovod.source import BuildError
from tests.power_cut import PowerCut

ROOT = Path(__file__).parents[2]
CACHE = build.cache()  # the user's, before a fixture turns to another
NOTHING = {"PATH": ""}
WHEEL = f"horovod-{source.VERSION}-cp311-cp311-linux_x86_64.whl"


def which(*names):
    return lambda name: f"/opt/mpi/bin/{name}" if name in names else None


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without CUDA and NCCL, whatever this one has."""
    monkeypatch.setattr(recipe, "_cuda_homes", lambda environment, which: iter(()))


@pytest.fixture
def tree(tmp_path):
    """Horovod's source as far as the patches look at it."""
    root = tmp_path / "made" / f"horovod-{source.VERSION}"
    for patch in source.PATCHES:
        path = root / patch.file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else "before\n"
        path.write_text(f"{before}{patch.old}after\n")
    (root / "setup.py").write_text(f"from setuptools import setup\nsetup(name='horovod', version='{source.VERSION}')\n")
    return root


@pytest.fixture
def index(tree, tmp_path, monkeypatch):
    """A package index with that source alone. Returns the archive."""
    folder = tmp_path / "index"
    folder.mkdir()
    archive = folder / f"{tree.name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, arcname=tree.name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return archive


@pytest.fixture
def builder(tmp_path, monkeypatch, no_gpu):
    """Stand-ins for all that takes minutes or changes this environment; counts their calls."""
    done = {"compiled": 0, "installed": []}

    def compile_quietly(command, environment, log):
        time.sleep(0.3)
        done["compiled"] += 1
        folder = Path(command[command.index("--wheel-dir") + 1])
        folder.mkdir()
        (folder / WHEEL).write_text("a wheel")

    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "prepared", lambda folder: folder)
    monkeypatch.setattr(build, "compile_quietly", compile_quietly)
    monkeypatch.setattr(build, "try_out", lambda wheel, wanted, folder: None)
    monkeypatch.setattr(recipe, "require_tools", lambda environment: None)
    monkeypatch.setattr(recipe, "require_packages", lambda: None)
    monkeypatch.setattr(build, "install", done["installed"].append)
    monkeypatch.setattr(build, "installed_key", lambda: None)
    return done


# The source


def test_the_source_is_fetched_by_its_hash_and_patched(index, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(index.read_bytes()).hexdigest())
    work = tmp_path / "work"
    work.mkdir()
    root = source.prepared(work)
    cmake = (root / "horovod/tensorflow/CMakeLists.txt").read_text()
    assert cmake == "before\nafter\n"
    assert "platform_specific_handle" in (root / "horovod/tensorflow/mpi_ops.cc").read_text()


def test_another_source_of_that_name_is_refused(index, tmp_path):
    with pytest.raises(BuildError, match=r"(?i)hash") as error:
        source.fetch(tmp_path)
    assert "\n" not in str(error.value)


def test_a_source_that_is_not_to_be_had(index, tmp_path):
    index.unlink()
    with pytest.raises(BuildError, match=r"cannot fetch the source of horovod==.*check pip's index"):
        source.fetch(tmp_path)


@pytest.mark.parametrize("times", [0, 2])
def test_a_patch_that_does_not_apply_stops_the_build(tree, times):
    patch = source.PATCHES[0]
    (tree / patch.file).write_text(patch.old * times)
    with pytest.raises(BuildError, match=rf"CMakeLists.txt: found {times} times .*xla_mpi_ops.cc.*expected it once"):
        source.apply(patch, tree)


# The recipe


@pytest.mark.parametrize(
    ("environment", "tools", "features"),
    [
        ({}, (), ("gloo",)),
        ({}, ("mpirun",), ("gloo",)),
        ({}, ("mpirun", "mpicxx"), ("gloo", "mpi")),
        ({"HOROVOD_WITHOUT_MPI": "1"}, ("mpirun", "mpicxx"), ("gloo",)),
    ],
)
def test_mpi_is_built_in_where_it_is(no_gpu, environment, tools, features):
    found = recipe.detect(environment, which(*tools))
    assert found.features == features
    assert found.settings["HOROVOD_WITH_GLOO"] == "1"
    assert ("HOROVOD_WITH_MPI" in found.settings) == ("mpi" in features)
    assert found.settings.get("HOROVOD_WITHOUT_MPI") == (None if "mpi" in features else "1")


@pytest.mark.parametrize(
    ("library", "linkable"),
    [("lib/libnccl.so", True), ("lib/x86_64-linux-gnu/libnccl.so", True), ("lib/libnccl.so.2", False)],
)
def test_nccl_is_built_in_where_it_and_cuda_are(tmp_path, library, linkable):
    environment = {"HOROVOD_NCCL_HOME": str(tmp_path / "nccl"), "HOROVOD_CUDA_HOME": str(tmp_path / "cuda")}
    for file in ("cuda/bin/nvcc", "nccl/include/nccl.h", f"nccl/{library}"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = recipe.detect(environment, which())
    assert found.features == ("gloo", "nccl")
    assert {**environment, "HOROVOD_GPU_OPERATIONS": "NCCL"}.items() <= found.settings.items()
    (tmp_path / "work").mkdir()
    made = build.build_environment(found, tmp_path / "work")
    if not linkable:
        assert (Path(made["HOROVOD_NCCL_LIB"]) / "libnccl.so").resolve() == tmp_path / "nccl" / library
        assert f"-rpath,{tmp_path / 'nccl' / 'lib'}" in made["LDFLAGS"]
    assert linkable == ("HOROVOD_NCCL_LIB" not in made)
    assert recipe.detect({**environment, "HOROVOD_GPU_OPERATIONS": ""}, which()).features == ("gloo",)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HOROVOD_WITH_MPI": "1"}, "HOROVOD_WITH_MPI=1, but mpicxx and mpirun not found"),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, "HOROVOD_GPU_OPERATIONS=NCCL, but nvcc not found"),
        ({"HOROVOD_GPU_OPERATIONS": "DDL"}, "HOROVOD_GPU_OPERATIONS=DDL; expected NCCL"),
    ],
)
def test_a_feature_that_was_asked_for_and_is_not_to_be_had(no_gpu, environment, message):
    with pytest.raises(BuildError, match=message):
        recipe.detect(environment, which())


def test_missing_tools_are_named_in_one_line(no_gpu):
    with pytest.raises(BuildError, match=r"^cmake and g\+\+ not found on PATH; .*conda-forge") as error:
        recipe.require_tools(NOTHING, which("make"))
    assert "\n" not in str(error.value)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(recipe, "_PACKAGES", ("tensorflow", "no-such-package"))
    with pytest.raises(BuildError, match=r"package\(s\) no-such-package not found .*\[horovod\]"):
        recipe.require_packages()


def test_the_key_changes_with_all_that_a_wheel_depends_on(no_gpu, monkeypatch):
    plain = recipe.detect({}, which())
    mpi = recipe.detect({}, which("mpirun", "mpicxx"))
    other_mpi = recipe.detect({}, lambda name: f"/opt/other/bin/{name}")
    keys = [plain.key(), mpi.key(), other_mpi.key()]
    monkeypatch.setattr(recipe.importlib.metadata, "version", lambda name: "2.99.0")
    keys.append(plain.key())
    monkeypatch.setattr(recipe.platform, "libc_ver", lambda: ("glibc", "2.99"))
    keys.append(plain.key())
    monkeypatch.setattr(recipe, "PATCHES", ())
    keys.append(plain.key())
    assert len(set(keys)) == 6
    assert recipe.detect({}, which()).key() == keys[-1]


# The cache


def test_it_is_compiled_once_and_then_taken_from_the_cache(builder, monkeypatch):
    wanted = recipe.detect({}, which())
    build.ensure(wanted)
    build.ensure(wanted)
    wheel = build.cache() / "wheels" / wanted.key() / WHEEL
    assert builder == {"compiled": 1, "installed": [wheel, wheel]}
    monkeypatch.setattr(build, "installed_key", wanted.key)
    build.ensure(wanted)
    assert len(builder["installed"]) == 2


def test_two_processes_at_once_compile_once(builder):
    wanted = recipe.detect({}, which())
    threads = [threading.Thread(target=build.ensure, args=(wanted,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder["compiled"] == 1
    assert len(builder["installed"]) == 3


def test_a_wheel_is_whole_or_absent(builder, monkeypatch):
    def half(wheel, partial):
        partial.write_text("a wh")
        raise OSError(28, "No space left on device")

    wanted = recipe.detect({}, which())
    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(OSError, match="No space"):
        build.ensure(wanted)
    folder = build.cache() / "wheels" / wanted.key()
    assert build.kept(folder) is None
    assert not list(folder.iterdir())


def test_a_power_cut_leaves_a_whole_wheel_or_none(tmp_path, monkeypatch):
    wheel, cache = tmp_path / "horovod.whl", tmp_path / "wheels"
    wheel.write_bytes(b"a wheel")
    cache.mkdir()
    disk = PowerCut(cache, monkeypatch)
    build.moved(wheel, cache / "key")
    paths = (root / "key" / wheel.name for root in disk.each(tmp_path / "every"))
    assert {path.read_bytes() for path in paths if path.exists()} == {b"a wheel"}
    assert [(root / "key" / wheel.name).read_bytes() for root in disk.now(tmp_path / "now")] == [b"a wheel"]


def test_two_machines_that_share_a_cache_do_not_mix_their_wheels(tmp_path, monkeypatch):
    """Processes of two machines may have the same number."""
    wheel, partials = tmp_path / "horovod.whl", []
    monkeypatch.setattr(shutil, "copyfile", lambda _, partial: partials.append(partial) or partial.touch())
    for _ in range(2):
        build.moved(wheel, tmp_path / "key")
    assert len(set(partials)) == 2


def test_a_wheel_that_does_not_work_is_not_kept(builder, monkeypatch):
    def fails(wheel, wanted, folder):
        raise BuildError("undefined symbol")

    wanted = recipe.detect({}, which())
    monkeypatch.setattr(build, "try_out", fails)
    with pytest.raises(BuildError, match="undefined symbol"):
        build.ensure(wanted)
    assert build.kept(build.cache() / "wheels" / wanted.key()) is None
    assert not builder["installed"]


def test_a_failed_compilation_shows_its_first_error(tmp_path):
    log = tmp_path / "logs" / "build.log"
    script = "echo fine; echo 'x.cc:3: error: no such header' >&2; echo later; exit 3"
    with pytest.raises(BuildError, match=r"exit code 3.*x.cc:3: error: no such header.*build.log"):
        build.compile_quietly(["sh", "-c", script], dict(os.environ), log)
    assert log.read_text().splitlines()[-1] == "later"


def test_a_long_compilation_shows_that_it_lives(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "_PROGRESS_SECONDS", 0.1)
    build.compile_quietly(["sleep", "0.35"], dict(os.environ), tmp_path / "log")
    assert capsys.readouterr().out.count("still compiling") >= 2


def test_what_a_killed_build_left_is_removed_but_not_what_another_uses(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used, foreign = (tmp_path / f"lms3d-horovod-{name}" for name in ("left", "used", "foreign"))
    (left / "build").mkdir(parents=True)
    used.mkdir()
    foreign.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    with build.locked(used), build.workspace() as first:
        assert not left.exists()
        with build.workspace() as second:
            assert {path.name for path in tmp_path.iterdir()} == {
                used.name, foreign.name, "elsewhere", first.name, second.name
            }  # fmt: skip
    assert not first.exists()


def test_an_interrupted_compilation_ends_its_compilers(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_PROGRESS_SECONDS", 0.3)
    monkeypatch.setattr(build, "say", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build.compile_quietly(["sh", "-c", "sleep 60 & echo $!; wait"], dict(os.environ), tmp_path / "log")
    compiler = int((tmp_path / "log").read_text())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{compiler}").exists() and "zombie" not in Path(f"/proc/{compiler}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_flags_of_make_do_not_reach_the_build(no_gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("MAKEFLAGS", " --jobserver-auth=3,4 -- ARGS=x")
    monkeypatch.setenv("MAKELEVEL", "1")
    made = build.build_environment(recipe.detect({}, which()), tmp_path)
    assert made["MAKEFLAGS"] == f"-j{min(16, len(os.sched_getaffinity(0)))}"
    assert "MAKELEVEL" not in made


# The environment


def test_the_installed_wheel_is_known_by_where_it_came_from(tmp_path, monkeypatch):
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert build.installed_key() != "some key"
    (info / "direct_url.json").write_text('{"url": "file:///c/wheels/some%20key/horovod-0.28.1-py3-none-any.whl"}')
    assert build.installed_key() == "some key"


def test_the_command_ends_with_one_line(builder, capsys, monkeypatch):
    assert build.main() == 0
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "DDL")
    assert build.main() == 2
    assert capsys.readouterr().err.startswith("horovod: error: HOROVOD_GPU_OPERATIONS=DDL")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "")
    monkeypatch.setenv("LMS3D_CACHE", str(ROOT / "Makefile"))
    assert build.main() == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "LMS3D_CACHE" in err


def test_make_test_installs_horovod_before_the_tests_run():
    done = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0 < done.stdout.index("-m deploy.horovod.build") < done.stdout.index("-m pytest")


def test_the_wheel_of_this_machine_loads_and_has_its_features(tmp_path):
    wanted = recipe.detect(os.environ)
    wheel = build.kept(CACHE / "wheels" / wanted.key())
    if wheel is None:
        pytest.skip("not compiled on this machine; make horovod does it")
    build.try_out(wheel, wanted, tmp_path / "try")


# The environment of a cluster


def test_conda_brings_all_that_the_build_needs_and_nothing_of_pip():
    made = yaml.safe_load((ROOT / "deploy/conda/environment.yml").read_text())
    assert all(isinstance(package, str) for package in made["dependencies"]), (
        "pip comes second, in a command of its own"
    )
    names = {package.split("=")[0].rstrip("<>") for package in made["dependencies"]}
    assert {"python", "pip", "cmake", "make", "cxx-compiler", "openmpi-mpicxx", "cuda-nvcc", "nccl"} <= names
    assert made["variables"] == {"HOROVOD_GPU_OPERATIONS": "NCCL"}
    readme = (ROOT / "deploy/conda/README.md").read_text()
    steps = [readme.index(step) for step in ("conda env create", "pip install --editable", "-m deploy.horovod.build")]
    assert steps == sorted(steps)
