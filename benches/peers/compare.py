"""Plain decoding of SmolLM2-135M on the CPU: Foretoken against mlx-lm 0.32.2 with the same OpenBLAS.

Usage: python3 benches/peers/compare.py [--pairs 3] [--tokens 64]

Sets the peer up below .native/peers (a virtual environment, the GGUF as a float32 folder, and a small
library that forwards BLAS calls to the OpenBLAS that Foretoken links), then runs both in the order
A B B A so that a noisy neighbour hits both, and prints the ratio of the medians.
Needs `cargo xtask native`, `cargo xtask model` and `cargo build --release -p foretoken-cli` first.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / ".native" / "peers"
MODEL = ROOT / "models" / "fetched" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SITE = ROOT / ".native" / "site"
PINNED = ["mlx[cpu]==0.32.2", "mlx-lm==0.32.2", "gguf==0.19.0", "numpy==2.4.6", "transformers==5.24.0"]


def setup():
    """Installs the peer once; every step is skipped when its result is there."""
    python = HERE / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HERE / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PINNED], check=True)
    folder = HERE / "smollm2-f32"
    if not (folder / "model.safetensors").exists():
        script = ROOT / "tools" / "gguf_to_hf.py"
        subprocess.run([python, script, MODEL, folder], check=True, stdout=subprocess.DEVNULL)
    blas = HERE / "libfront_blas.so"
    if not blas.exists():
        lib = SITE / "scipy_openblas32" / "lib"
        source = ROOT / "xtask" / "native" / "gaps.cpp"
        command = ["c++", "-O2", "-fPIC", "-shared", "-o", blas, source, f"-L{lib}", "-lscipy_openblas"]
        subprocess.run([*command, f"-Wl,-rpath,{lib}"], check=True)
    return python, folder, blas


def peer(setup_result, prompt, tokens):
    python, folder, blas = setup_result
    command = [python, ROOT / "benches" / "peers" / "mlx_lm_decode.py", folder, str(tokens), prompt]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(blas)})
    return json.loads(done.stdout.splitlines()[-1])


def ours(prompt, tokens):
    binary = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "foretoken"
    command = [binary, "generate", "--model", MODEL, "--draft", "none", "--device", "cpu", "--prompt-ids", prompt]
    command += ["--max-tokens", str(tokens), "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"ids": answer["ids"], "tokens_per_second": answer["timing"]["decode_tokens_per_second"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    prompt = ",".join(map(str, json.loads((ROOT / "golden" / "smollm2-greedy-trace.json").read_text())[0]["prompt_ids"]))
    ready = setup()
    speeds = {"foretoken": [], "mlx-lm": []}
    for _ in range(options.pairs):
        for name in ("foretoken", "mlx-lm", "mlx-lm", "foretoken"):
            result = ours(prompt, options.tokens) if name == "foretoken" else peer(ready, prompt, options.tokens)
            speeds[name].append((result["tokens_per_second"], result["ids"]))
    if any(ids != speeds["mlx-lm"][0][1] for runs in speeds.values() for _, ids in runs):
        sys.exit("the two programs wrote different tokens: the speeds do not compare")
    medians = {name: statistics.median(speed for speed, _ in runs) for name, runs in speeds.items()}
    print("| program | tokens/s, each run | median |\n|---|---|---|")
    for name, runs in speeds.items():
        print(f"| {name} | {' '.join(f'{speed:.1f}' for speed, _ in runs)} | {medians[name]:.1f} |")
    print(f"\nforetoken / mlx-lm = {medians['foretoken'] / medians['mlx-lm']:.2f}")


if __name__ == "__main__":
    main()
