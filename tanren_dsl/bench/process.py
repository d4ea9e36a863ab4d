"""The process of a vLLM server: its command line, its environment, its start, its end.

`start` gives a running process group that answers nothing yet; `server.serve` waits for it and
puts the HTTP interface before it. The server's output goes to a log file and is read from there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tanren_dsl.conform.vllm_env import tail_of
from tanren_dsl.errors import TanrenError

MODEL_NAME = "tanren"
"""Name under which a server of ours serves its model."""

POLICY_MODULE = "tanren_policy"
_MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command asks for a package that CPU wheels lack
_PINNED = """
import os, sys
os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
_STOP_S = 20.0
_CAUSE = re.compile(
    r"^(?:\(\w+ pid=\d+\) )?(?:ERROR [\d: -]+\[[^]]*\] )?((?:[\w.]*(?:Error|Exception): |\S+: [Ee]rror\b).*)"
)
_ECHOES = ("Engine core initialization failed", "Worker failed with error")


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """How a server is started. Sizes in tokens, blocks or requests, as vLLM names them.

    `num_gpu_blocks` is the size of the block pool, whose block 0 is never used; None leaves it to
    vLLM. `cores` is a list such as `1` or `0,2`: every thread of the server stays on them.
    `asynchronous` None leaves the choice to vLLM. Without a `policy_file` the server is vLLM's own.
    `environment` goes on top of this process's; `extra_args` end the command line.
    """

    python: Path
    model: Path
    block_size: int
    num_gpu_blocks: int | None
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cores: str | None = None
    policy_file: Path | None = None
    asynchronous: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()

    def arguments(self, port: int) -> list[str]:
        """The server's arguments, to listen on a port of this machine only."""
        arguments = ["--model", str(self.model), "--served-model-name", MODEL_NAME]
        arguments += ["--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--block-size", str(self.block_size), "--enable-prefix-caching"]
        if self.num_gpu_blocks is not None:
            arguments += ["--num-gpu-blocks-override", str(self.num_gpu_blocks)]
        arguments += ["--max-model-len", str(self.max_model_len)]
        arguments += ["--max-num-seqs", str(self.max_num_seqs)]
        arguments += ["--max-num-batched-tokens", str(self.max_num_batched_tokens)]
        if self.asynchronous is not None:
            arguments.append("--async-scheduling" if self.asynchronous else "--no-async-scheduling")
        if self.policy_file is not None:
            arguments += ["--scheduler-cls", f"{POLICY_MODULE}.Scheduler"]
        return [*arguments, *self.extra_args]


def start(spec: ServeSpec, port: int, log: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own; its output goes to `log`, which is replaced.

    Args:
        spec: what to start.
        port: free port of this machine.
        log: file for all it says.
        folder: where the policy is put, and from where it is imported; must outlive the server.

    Raises:
        TanrenError: the interpreter cannot be run, or the policy file or the log cannot be used.
    """
    command = ["-m", _MODULE, *spec.arguments(port)]
    if spec.cores is not None:
        command = ["-c", _PINNED, _checked_cores(spec.cores), *command]
    try:
        if spec.policy_file is not None:
            shutil.copyfile(spec.policy_file, folder / f"{POLICY_MODULE}.py")
        with log.open("wb") as stream:
            return subprocess.Popen(
                [str(spec.python), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=_environment(spec, folder),
                start_new_session=True,
            )
    except OSError as error:
        hint = None if spec.python.exists() else "tanren-dsl vllm-env makes an environment with vLLM"
        raise TanrenError(f"cannot start a server: {error.filename}: {error.strerror}", hint=hint) from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server: it is asked to, and what is left of its group after 20 seconds is killed."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failure(message: str, log: Path) -> TanrenError:
    """An error that names the first cause the log holds, and ends with the log's tail."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [match.group(1) for line in lines if (match := _CAUSE.match(line))]
    causes = [text for text in found if not any(echo in text for echo in _ECHOES)]
    cause = f": {causes[-1][:400]}" if causes else ""
    return TanrenError(f"{message}{cause}\n{tail_of(chr(10).join(lines))}", hint=f"all it said is in {log}")


def _environment(spec: ServeSpec, folder: Path) -> dict[str, str]:
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    ours = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONHASHSEED": "0",  # 0.19's first block hash needs it
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
    }
    if spec.cores is not None:
        ours["OMP_NUM_THREADS"] = str(len(spec.cores.split(",")))
    return {**os.environ, **ours, **spec.environment}


def _checked_cores(cores: str) -> str:
    ours = os.sched_getaffinity(0)
    if not all(core.isdecimal() and int(core) in ours for core in cores.split(",")):
        raise TanrenError(
            f"cores {cores!r} are not all there: this process may use {','.join(map(str, sorted(ours)))}"
        )
    return cores
