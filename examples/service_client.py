"""A client of the service: inputs in, decisions out, over HTTP.

`besnn serve model.safetensors` would run on another machine. This script starts it, sends it 400 inputs at once, and stops it.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

from besnn import fit_detector
from besnn.data import two_moons
from besnn.training import load_recipe

model = Path(mkdtemp()) / "moons.safetensors"
fit_detector(load_recipe("two-moons", ["training.epochs=30"]), two_moons(1000)).detector.save(model)

command = [sys.executable, "-m", "besnn", "serve", str(model), "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
    address = next(found[0] for line in service.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
    points = np.random.default_rng(0).uniform(-3, 4, (400, 2))
    body = json.dumps({"inputs": points.tolist()}).encode()
    request = urllib.request.Request(f"{address}/v1/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        predictions = json.load(answer)["predictions"]
    service.terminate()

decisions = np.array([each["decision"] for each in predictions])
print({str(name): int(count) for name, count in zip(*np.unique(decisions, return_counts=True), strict=True)})
for name, colour in (("known", "tab:blue"), ("unsure", "tab:orange"), ("unknown", "lightgrey")):
    plt.scatter(*points[decisions == name].T, s=10, color=colour, label=name)
plt.legend()
plt.savefig("service_client.png", dpi=80, bbox_inches="tight")
