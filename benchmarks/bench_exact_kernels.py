"""Exact kernels compared with neural-tangents 0.6.5 in one run.

Two worker processes, one per library, take turns, so that both see the same load; medians are compared.
neural-tangents needs an old JAX and NumPy, so it runs in its own environment, ``.venv-neural-tangents``, created on
first use. On a GPU, and with --quick, only ntkit is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from experiment import UnavailableError, grid, main, memory_mib, table

TITLE = "Exact kernels: time, memory and error compared with neural-tangents"
ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-neural-tangents"
PINS = ["neural-tangents==0.6.5", "jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13"]
DEPTH = 3
# name: (shape of X, shape of Y or None for the matrix of X with itself)
TASKS = {
    "ntk 4000 × 4000, d = 100, L = 3": ((4000, 100), (4000, 100)),
    "ntk 4000 × 4000, d = 100, L = 3, symmetric": ((4000, 100), None),
    "cntk 32 × 32 × 3, L = 3, GAP, 2 × 2 images": ((2, 32, 32, 3), (2, 32, 32, 3)),
    "cntk 32 × 32 × 3, L = 3, GAP, 8 × 8 images": ((8, 32, 32, 3), (8, 32, 32, 3)),
}
GPU_TASKS = {
    "ntk 30000 × 30000, d = 784, L = 3": ((30000, 784), (30000, 784)),
    "cntk 32 × 32 × 3, L = 3, GAP, 100 × 100 images": ((100, 32, 32, 3), (100, 32, 32, 3)),
}
QUICK_TASKS = {
    "ntk 500 × 500, d = 100, L = 3": ((500, 100), (500, 100)),
    "cntk 8 × 8 × 3, L = 3, GAP, 2 × 2 images": ((2, 8, 8, 3), (2, 8, 8, 3)),
}


def data(shape, seed):
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def ntkit_kernel(images, device):
    """Return a function of NumPy arrays (X, Y) that computes the matrix."""
    from ntkit import networks as nn
    from ntkit.kernels import network_kernel

    net = (
        nn.Sequential(*(nn.Conv(3), nn.ReLU()) * DEPTH, nn.GlobalAvgPool(), nn.Dense())
        if images
        else nn.fully_connected(DEPTH)
    )
    if device == "cpu":
        return lambda X, Y: network_kernel(net, X, Y)
    import torch

    def on_device(X, Y):
        K = network_kernel(net, X.to(device), None if Y is None else Y.to(device))
        torch.cuda.synchronize()  # the copy to the host is not timed
        return K

    def from_numpy(X, Y):
        return on_device(torch.from_numpy(X), None if Y is None else torch.from_numpy(Y))

    return from_numpy


def neural_tangents_kernel(images):
    import jax
    import numpy as np
    from neural_tangents import stax

    std = 2**0.5
    if images:
        layers = (stax.Conv(1, (3, 3), padding="SAME", W_std=std), stax.Relu()) * DEPTH
        _, _, kernel = stax.serial(*layers, stax.GlobalAvgPool(), stax.Dense(1))
    else:
        layers = (stax.Dense(1, W_std=std), stax.Relu()) * DEPTH
        _, _, kernel = stax.serial(*layers, stax.Dense(1))
    kernel = jax.jit(kernel, static_argnums=2)
    # neural-tangents divides ⟨x, y⟩ by the number of features or channels.
    return lambda X, Y: np.asarray(kernel(X, Y, "ntk").block_until_ready()) * X.shape[-1]


def worker(library, device):
    """Answer tasks on standard input: the warm-up call also saves the matrix; each call reports its seconds."""
    import numpy as np

    for line in sys.stdin:
        task = json.loads(line)
        X = data(task["X"], 1)
        Y = None if task["Y"] is None else data(task["Y"], 2)
        images = len(task["X"]) == 4
        if task["warm"]:
            kernel = neural_tangents_kernel(images) if library == "neural-tangents" else ntkit_kernel(images, device)
            K = kernel(X, Y)
            np.save(task["file"], K if isinstance(K, np.ndarray) else K[:200, :200].cpu().numpy())
        start = time.perf_counter()
        kernel(X, Y)
        seconds = time.perf_counter() - start
        peak = memory_mib()
        if device == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated() / 2**20
        print(json.dumps({"seconds": seconds, "peak_mib": peak}), flush=True)


class Worker:
    """A worker process; each task starts a new one, so that peak memory is measured per task."""

    def __init__(self, python, library, device="cpu"):
        command = [str(python), __file__, "--worker", library, device]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def neural_tangents_python():
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"Creating {ENVIRONMENT.name} with {', '.join(PINS)} …", flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PINS], check=True)
    return python


def reference(shape_x, shape_y):
    """Return entries of the matrix in float64 by the array-API implementation, and the scale √(K(x,x) K(y,y))."""
    import numpy as np

    from ntkit import networks as nn
    from ntkit.kernels import diagonal
    from ntkit.kernels.network import Network
    from ntkit.kernels.tiles import gram

    X = data(shape_x, 1).astype("float64")[:200]
    Y = X if shape_y is None else data(shape_y, 2).astype("float64")[:200]
    if X.ndim == 4:
        X, Y = X[:2], Y[:2]
        net = nn.Sequential(*(nn.Conv(3), nn.ReLU()) * DEPTH, nn.GlobalAvgPool(), nn.Dense())
    else:
        net = nn.fully_connected(DEPTH)
    kernel = Network(net)
    (K,) = gram(kernel, kernel.prepare(X), kernel.prepare(Y))
    return K, np.sqrt(np.outer(diagonal(net, X), diagonal(net, Y)))


def cases(args):
    tasks = QUICK_TASKS if args.quick else TASKS | GPU_TASKS if args.device == "cuda" else TASKS
    libraries = ["ntkit"] if args.quick or args.device == "cuda" else ["neural-tangents", "ntkit"]
    return grid(task=tasks, libraries=[libraries], rounds=2 if args.quick else 7, device=args.device)


def measure(task, libraries, rounds, device):
    """Measure median seconds over rounds in which the libraries take turns, error and memory."""
    import numpy as np

    shapes = (TASKS | GPU_TASKS | QUICK_TASKS)[task]
    workers = {name: Worker(python_of(name), name, device) for name in libraries}
    seconds = {name: [] for name in libraries}
    peaks, found = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{name}.npy") for name in libraries}
        for k in range(rounds + 1):
            for name, worker in workers.items():
                answer = worker.ask(X=shapes[0], Y=shapes[1], warm=k == 0, file=files[name])
                peaks[name] = answer["peak_mib"]
                seconds[name] += [answer["seconds"]] if k else []
        K, scale = reference(*shapes)
        for name, worker in workers.items():
            worker.close()
            matrix = np.load(files[name])[: K.shape[0], : K.shape[1]]
            found[name] = {"all_seconds": seconds[name], "seconds": statistics.median(seconds[name])}
            found[name] |= {"peak_mib": peaks[name], "error": float((np.abs(matrix - K) / scale).max())}
    return {"methods": found}


def python_of(library):
    """Return the interpreter of the environment with the library."""
    try:
        return neural_tangents_python() if library == "neural-tangents" else sys.executable
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"cannot create the environment of neural-tangents: {error}") from error


def report(runs):
    return table(runs, "task device method seconds:.4f seconds/:.3f peak_mib:.0f error:.1e")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main(__name__)
