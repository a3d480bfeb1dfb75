"""Make the environment of `make bench-peers`: `python tools/peers.py FOLDER [--python COMMAND]`.

PyTorch, JAX and public packages that run beside the library, apart from .venv: nothing else needs them, and they take
two gigabytes. k-diffusion comes without its dependencies, which would replace PyTorch and NumPy by others; what its
samplers need is in the list. Does nothing where the folder already holds what `constraints-peers.txt` pins.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys

from bootstrap import ROOT, find_python, version

CONSTRAINTS = os.path.join(ROOT, "constraints-peers.txt")
NEEDED = ["torch", "diffusers", "torchdiffeq", "numpy", "scipy", "scikit-learn", "array-api-compat", "mpmath"]
LOSSES = ["jax", "optax", "tokamax", "cut-cross-entropy"]
ALONE = ["k-diffusion", "torchsde", "trampoline"]


def wanted():
    """Hash of what decides the contents of the environment."""
    digest = hashlib.sha256(" ".join(NEEDED + LOSSES + ALONE).encode())
    with open(CONSTRAINTS, "rb") as file:
        digest.update(file.read())
    return digest.hexdigest()


def installed(stamp):
    """Hash of what the environment holds, None if it holds nothing whole."""
    try:
        with open(stamp) as file:
            return json.load(file).get("hash")
    except (OSError, ValueError, AttributeError):
        return None


def pip(python, *arguments):
    """Run pip; say what failed and what that means."""
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", CONSTRAINTS]
    if subprocess.call(command + list(arguments)) != 0:
        sys.exit(
            f"bench-peers: pip could not install {' '.join(arguments)}.\n"
            "The comparison needs a package index with the versions of constraints-peers.txt, and 3 GB of disk.\n"
            "Nothing else of diffnum needs them; `python -m bench.peers --no-peers` measures our side alone."
        )


def main():
    """Create or update the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--python", default="")
    options = parser.parse_args()

    folder = os.path.abspath(options.folder)
    inner = os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")
    stamp = os.path.join(folder, "diffnum-peers.json")
    if installed(stamp) == wanted() and version(inner) is not None:
        return
    python = find_python(options.python)
    print(f"creating {options.folder} with {python}", flush=True)
    if subprocess.call([python, "-m", "venv", "--clear", folder]) != 0:
        sys.exit("bench-peers: could not create a virtual environment (on Debian: apt install python3-venv)")
    print(f"installing PyTorch, JAX and the packages to compare with into {options.folder} (some minutes)", flush=True)
    pip(inner, *NEEDED, *LOSSES)
    pip(inner, "--no-deps", *ALONE)
    with open(stamp, "w") as file:
        json.dump({"hash": wanted()}, file)


if __name__ == "__main__":
    main()
