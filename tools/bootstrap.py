"""Make the virtual environment of this checkout: `python tools/bootstrap.py FOLDER [--python COMMAND] [--extra NAME]`.

Does nothing where the folder already holds what `pyproject.toml` and `constraints.txt` ask for. Runs on any Python 3;
the environment needs 3.11 or newer, and the newest suitable interpreter on the PATH is taken if this one is older.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXTRAS = "jax,book,test,bench,dev"
CANDIDATES = ["python3.13", "python3.12", "python3.11", "python3"]
OLDEST = (3, 11)
NEWEST = (3, 13)


def version(python):
    """(major, minor) of an interpreter, or None where it does not run."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        out = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(int(part) for part in out.stdout.split())


def find_python(asked):
    """The interpreter to use: the one asked for, else this one, else a newer one on the PATH."""
    if asked:
        found = version(asked)
        if found is None:
            sys.exit("PYTHON=%s does not run" % asked)
        if found < OLDEST:
            sys.exit("PYTHON=%s is Python %d.%d; diffnum needs 3.11 or newer" % ((asked,) + found))
        return asked
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for command in CANDIDATES:
        path = shutil.which(command)
        if path and (version(path) or (0, 0)) >= OLDEST:
            return path
    sys.exit(
        "diffnum needs Python 3.11 or newer; found only %d.%d. Name one: make ... PYTHON=/path/to/python"
        % sys.version_info[:2]
    )


def wanted():
    """Hash of what decides the contents of the environment."""
    digest = hashlib.sha256(EXTRAS.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def pip(python, *arguments):
    """Run pip quietly; say what failed."""
    constraints = os.path.join(ROOT, "constraints.txt")
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints]
    if subprocess.call(command + list(arguments)) != 0:
        sys.exit("pip could not install %s (is the package index reachable?)" % " ".join(arguments))


def main():
    """Create or update the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--python", default="")
    parser.add_argument("--torch", action="store_true", help="PyTorch as well")
    options = parser.parse_args()

    folder = os.path.abspath(options.folder)
    inner = os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")
    stamp = os.path.join(folder, "diffnum-installed.json")
    present = version(inner)
    if present and options.python and present != version(options.python):
        print("%s holds Python %d.%d; making it anew" % ((options.folder,) + present))
        shutil.rmtree(folder)
        present = None
    if present is None or present < OLDEST:
        python = find_python(options.python)
        print("creating %s with %s" % (options.folder, python), flush=True)
        if subprocess.call([python, "-m", "venv", "--clear", folder]) != 0:
            sys.exit("could not create a virtual environment (on Debian: apt install python3-venv)")
    try:
        with open(stamp) as file:
            state = json.load(file)
    except (OSError, ValueError):
        state = {}
    if state.get("hash") != wanted():
        print("installing what constraints.txt pins into %s (a minute or two)" % options.folder, flush=True)
        pip(inner, "hatchling", "editables")
        pip(inner, "--no-build-isolation", "-e", "%s[%s]" % (ROOT, EXTRAS))
        with open(stamp, "w") as file:
            json.dump({"hash": wanted()}, file)
    if options.torch:
        pip(inner, "torch==2.13.0")


if __name__ == "__main__":
    main()
