"""ONNX Runtime alone: an exported model without PyTorch or besnn.

`besnn export moons.safetensors` writes moons.onnx; `python onnx_runtime.py moons.onnx` asks it about three points.
"""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
names, decisions = json.loads(facts["class_names"]), json.loads(facts["decisions"])
points = np.array([[0.0, 1.0], [1.0, -0.5], [40.0, 40.0]], np.float32)
label, probabilities, score, p_value, is_ood, decision, label_set = session.run(None, {"inputs": points})
for row, point in enumerate(points):
    print(point, names[label[row]], f"p = {p_value[row]:.3f}", decisions[decision[row]])
print("modules:", *sorted({name.split(".")[0] for name in sys.modules} & {"besnn", "torch", "onnxruntime"}))
