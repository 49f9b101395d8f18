import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 10


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a warm process")
def test_every_run_that_is_killed_and_resumed_reaches_the_same_weights(tmp_path):
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run([sys.executable, script, tmp_path, str(KILLS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["killed"] >= KILLS
    assert outcome["wrong"] == []
    assert len(outcome["steps"]) > 3  # kills came at many different moments
    assert outcome["files"] == ["checkpoint.safetensors", "log.csv"]
