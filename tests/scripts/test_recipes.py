"""Every recipe runs in a fresh process from an empty folder; job files can be read."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "scripts" / "recipes"
PAGE = (FOLDER / "README.md").read_text()
RECIPES = sorted(path.name for path in FOLDER.glob("*.py"))
NEEDS = {"hugging_face.py": "datasets", "pandas_frame.py": "pandas", "torch_dataset.py": "torch"}


def run(name: str, folder: Path) -> str:
    """What a copy of the recipe prints, run as a user would."""
    shutil.copy(FOLDER / name, folder / name)
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return done.stdout


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "notebook.py"])
def test_a_recipe_runs_from_an_empty_folder(name: str, tmp_path: Path):
    package = NEEDS.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} needs {package}, which is not installed")
    run(name, tmp_path)


def test_the_notebook_goes_on_after_its_kernel_was_restarted(tmp_path: Path):
    assert "step 0 of 100\nat step 50; " in run("notebook.py", tmp_path)
    assert "step 50 of 100\nat step 100; " in run("notebook.py", tmp_path)


def test_every_recipe_is_on_the_page_and_every_name_there_is_a_file():
    named = re.findall(r"\[`([\w.]+)`\]\(([\w.]+)\)", PAGE)
    assert all(name == link for name, link in named)
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md"}
    assert {name for name, _ in named} == files
    assert "were not run" in PAGE


def test_the_job_file_for_slurm_is_a_script_with_one_process_on_each_node():
    path = FOLDER / "slurm.sh"
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = path.read_text().splitlines()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", path.read_text(), re.M))
    assert len(options) == sum(line.startswith("#SBATCH") for line in lines)
    assert options["ntasks-per-node"] == "1"
    # Slurm reads its options up to the first command.
    last = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])


def test_the_job_file_for_gke_starts_as_many_processes_as_it_says_and_they_find_the_first():
    service, job = yaml.safe_load_all((FOLDER / "gke.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    name, spec, pod = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert str(spec["completions"]) == str(spec["parallelism"]) == env["NUM_PROCESSES"]
    port = container["ports"][0]["containerPort"]
    assert env["COORDINATOR_ADDRESS"] == f"{name}-0.{pod['subdomain']}:{port}"
    assert set(env) == set(re.findall(r'os\.environ\["(\w+)"\]', PAGE))


def test_the_job_file_for_ray_under_slurm_is_a_script_whose_nodes_join_the_first():
    path = FOLDER / "ray_slurm.sh"
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = path.read_text()
    assert "Not run here" in text
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", text, re.M))
    assert int(options["nodes"]) > 1
    assert options["ntasks-per-node"] == "1"
    assert 'export RAY_ADDRESS="$address"' in text
    assert 'ray start --address="$address"' in text


def test_the_job_file_for_kuberay_has_a_place_for_each_actor_that_it_names():
    text = (FOLDER / "ray_kuberay.yaml").read_text()
    assert "Not run here" in text
    job = yaml.safe_load(text)
    assert job["kind"] == "RayJob"
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["image"] == head["image"]
    # Ray wants this in quotes of its own.
    (places,) = json.loads(json.loads(group["rayStartParams"]["resources"])).values()
    assert int(group["rayStartParams"]["num-cpus"]) == places
    (count,) = re.findall(r"Ray\((\d+)", text)
    assert int(count) == places * group["replicas"]
