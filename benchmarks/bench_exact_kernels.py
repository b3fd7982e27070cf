"""Exact kernels against neural-tangents 0.6.5, side by side in one run.

    python benchmarks/bench_exact_kernels.py                 both libraries, on this CPU
    python benchmarks/bench_exact_kernels.py --device cuda   ntkit through torch, on a GPU, alone

Two worker processes, one per library, take turns, so that both see the same load of the machine; medians are
compared. neural-tangents needs an old JAX and NumPy: it gets its own environment, ``.venv-neural-tangents``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from common import RESULTS, memory_mib, versions

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
GPU_TASKS = TASKS | {
    "ntk 30000 × 30000, d = 784, L = 3": ((30000, 784), (30000, 784)),
    "cntk 32 × 32 × 3, L = 3, GAP, 100 × 100 images": ((100, 32, 32, 3), (100, 32, 32, 3)),
}


def data(shape, seed):
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def ntkit_kernel(images, device):
    """Function of NumPy arrays (X, Y) that returns the matrix."""
    from ntkit import networks as nn
    from ntkit.kernels import network_kernel

    net = (
        nn.Sequential(*(nn.Conv(3), nn.ReLU()) * DEPTH, nn.GlobalAvgPool(), nn.Dense())
        if images
        else nn.fully_connected(DEPTH)
    )
    if device == "numpy":
        return lambda X, Y: network_kernel(net, X, Y)
    import torch

    def on_device(X, Y):
        K = network_kernel(net, X.to(device), None if Y is None else Y.to(device))
        torch.cuda.synchronize()  # the matrix stays on the device: the copy to the host is not the kernel's
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
    """Answer tasks on standard input: a warm-up call saves the matrix, later calls give their seconds."""
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
    """A worker process, started anew for every task so that its peak memory belongs to that task."""

    def __init__(self, python, library, device="numpy"):
        command = [str(python), __file__, "--worker", library, "--device", device]
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
        print(f"Making {ENVIRONMENT.name} with {', '.join(PINS)} …", flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PINS], check=True)
    return python


def reference(shape_x, shape_y):
    """Entries of the matrix in float64 by the array-API walk, and the scale √(K(x,x) K(y,y))."""
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


def measure(task, shapes, workers, rounds, folder):
    """Medians over rounds in which the libraries take turns, with error and memory."""
    import numpy as np

    request = {"X": shapes[0], "Y": shapes[1]}
    results = {}
    for name, start in workers.items():
        results[name] = {"worker": start(), "file": str(folder / f"{name}.npy"), "seconds": []}
    for k in range(rounds + 1):
        for result in results.values():
            answer = result["worker"].ask(**request, warm=k == 0, file=result["file"])
            result["peak_mib"] = answer["peak_mib"]
            if k:
                result["seconds"].append(answer["seconds"])
    K, scale = reference(*shapes)
    for result in results.values():
        result.pop("worker").close()
        matrix = np.load(result.pop("file"))[: K.shape[0], : K.shape[1]]
        result["error"] = float((np.abs(matrix - K) / scale).max())
        result["median_seconds"] = statistics.median(result["seconds"])
        n_x = shapes[0][0]
        result["pairs_per_second"] = n_x * (shapes[1] or shapes[0])[0] / result["median_seconds"]
    return {"task": task, **results}


def show(rows):
    print(f"\n{'task':46} {'library':16} {'seconds':>9} {'pairs/s':>10} {'peak MiB':>9} {'error':>8} {'ratio':>6}")
    for row in rows:
        base = row.get("neural-tangents")
        for name in ("neural-tangents", "ntkit"):
            if name not in row:
                continue
            r = row[name]
            ratio = f"{base['median_seconds'] / r['median_seconds']:.1f}×" if base else ""
            print(
                f"{row['task']:46} {name:16} {r['median_seconds']:9.4f} {r['pairs_per_second']:10.0f} "
                f"{r['peak_mib']:9.0f} {r['error']:8.1e} {ratio:>6}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="numpy", choices=("numpy", "cuda"))
    parser.add_argument("--alone", action="store_true", help="without neural-tangents")
    parser.add_argument("--neural-tangents-python", help="interpreter that has it, instead of making one")
    parser.add_argument("--output", type=Path, default=RESULTS / "exact_kernels.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.device)
        return
    workers = {"ntkit": lambda: Worker(sys.executable, "ntkit", arguments.device)}
    if not arguments.alone and arguments.device == "numpy":
        python = arguments.neural_tangents_python or neural_tangents_python()
        workers["neural-tangents"] = lambda: Worker(python, "neural-tangents")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    tasks = GPU_TASKS if arguments.device == "cuda" else TASKS
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(task, shapes, workers, arguments.rounds, Path(folder)) for task, shapes in tasks.items()]
    arguments.output.write_text(
        json.dumps({"versions": versions(arguments.device), "device": arguments.device, "rows": rows}, indent=1) + "\n"
    )
    show(rows)
    print(f"\nWritten to {arguments.output}")


if __name__ == "__main__":
    main()
