"""The job files for other clusters: they parse, and ask for options that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from moetraffic.replay.__main__ import app

EXAMPLES = Path(__file__).parents[2] / "examples"
SLURM = EXAMPLES / "replay.slurm"
KUBERNETES = EXAMPLES / "replay-kubernetes.yaml"


def options() -> dict[str, bool]:
    """Options of the program, and whether they take a value."""
    command = typer.main.get_command(app)
    return {
        name: not parameter.is_flag
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def refuse_unknown(words: list[str]) -> None:
    known = options()
    asked = [word.partition("=")[0] for word in words if word.startswith("-")]
    assert asked
    assert set(asked) <= known.keys()


def test_the_batch_script_is_a_shell_script_with_options_that_exist() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this host")
    subprocess.run([bash, "-n", SLURM], check=True)
    text = SLURM.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^srun .*?moetraffic replay (.*)$", text, re.M)
    refuse_unknown(shlex.split(line))
    directives = re.findall(r"^#SBATCH --([a-z-]+)=\S+$", text, re.M)
    assert {"nodes", "ntasks-per-node", "gpus-per-node"} <= set(directives)
    # what stands before the first command is read by Slurm
    assert text.index("set -euo pipefail") > text.rindex("#SBATCH")


def test_the_manifest_is_a_service_and_a_job_that_agree() -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    command = container["command"]
    assert command[0] == "torchrun"
    split = command.index("--module")
    assert command[split + 1] == "moetraffic.replay"
    launcher = dict(word.split("=") for word in command[1:split])
    assert int(launcher["--nnodes"]) == spec["completions"]
    assert launcher["--master-addr"] == f"{name}-0.{pod['subdomain']}"
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(launcher["--nproc-per-node"]) == gpus
    refuse_unknown(command[split + 3 :])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
