"""Ray on one machine: a file scored by two workers.

`besnn score moons.safetensors points.parquet -o scores --engine ray --workers 2` does the same. With the address of a cluster,
many machines score files of any size, and a run that was stopped continues.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from besnn import fit_detector
from besnn.data import two_moons
from besnn.ray.scoring import score_on_ray
from besnn.ray.session import Cluster
from besnn.training import load_recipe

folder = Path(mkdtemp())
fit_detector(load_recipe("two-moons", ["training.epochs=30"]), two_moons(1000)).detector.save(folder / "moons.safetensors")
points = np.random.default_rng(0).uniform(-3, 4, (100_000, 2)).astype(np.float32)
pq.write_table(pa.table({"x1": points[:, 0], "x2": points[:, 1]}), folder / "points.parquet")

counts = score_on_ray(
    folder / "moons.safetensors", str(folder / "points.parquet"), str(folder / "scores"), cluster=Cluster(workers=2)
)
print(f"{counts.inputs:,} scored, {counts.flagged:,} flagged")

p_values = pq.read_table(folder / "scores")["p_value"].to_numpy()
plt.hexbin(*points.T, C=p_values, gridsize=60, cmap="viridis")
plt.colorbar(label="p-value: how many known inputs are as strange")
plt.savefig("ray_on_one_machine.png", dpi=80, bbox_inches="tight")
