"""Run the demonstration: write its inputs, run the chain of commands, show what came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from llmctl import console
from llmctl.artifacts.files import explain_os_error, write_file
from llmctl.config.load import shipped_configs
from llmctl.demo.chain import INPUTS, STEPS, Step
from llmctl.errors import ExitStatus, Interrupted, RunFailed, UserError


def write_inputs(folder: Path) -> None:
    """Write the raw corpus, conversations, preference pairs and prompts, unless they are there.

    Raises:
        UserError: the folder holds something else, or cannot be written to.
    """
    from llmctl.demo.conversations import write_conversations
    from llmctl.demo.raw import write_raw

    if (folder / INPUTS).is_file():
        return
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "raw").is_dir():
        raise UserError(f"{folder} is not empty and is no demo of llmctl", "give a new folder")
    console.info(f"writing the demo's raw text, conversations and preference pairs to {folder}")
    try:
        write_raw(folder / "raw")
        write_conversations(folder)
        write_file(folder, INPUTS, b"")
    except OSError as failure:
        raise explain_os_error(failure, folder) from failure


def configs_folder() -> Path:
    """Return the folder of the demo's configurations."""
    shipped = shipped_configs("demo")
    if not shipped:
        raise RunFailed("the demo's configurations are missing from this installation", "install llmctl again")
    return next(iter(shipped.values())).parent


def run_demo(folder: Path) -> None:
    """Run every step of the chain that is not done, each as its own process, as a user would.

    Raises:
        RunFailed: a step failed; what is finished stays.
    """
    write_inputs(folder)
    configs = str(configs_folder())
    for step in STEPS[1:-1]:
        _run_step(step, folder, configs)


def _run_step(step: Step, folder: Path, configs: str) -> None:
    arguments = step.arguments(str(folder), configs)
    console.info(f"\n$ llmctl {' '.join(arguments)}")
    # The steps' results are talk here: stdout belongs to the demo's own result.
    process = subprocess.Popen([sys.executable, "-m", "llmctl", *arguments], stdout=sys.stderr)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # The step has got the signal too (or gets it now): let it save its state.
        process.terminate()
        status = process.wait()
    if status in (ExitStatus.INTERRUPTED, -2, -15):
        raise Interrupted(f"stopped in `llmctl {arguments[0]}`", "the same command goes on from there")
    if status:
        raise RunFailed(
            f"`llmctl {' '.join(arguments)}` ended with status {status}",
            "its message stands above; the same command goes on from there",
        )
