"""The page of a triage: self-contained, escaped, and with a script that its policy allows."""

import base64
import hashlib
import re

import numpy as np

from besnn.data import Dataset
from besnn.triage import Group, Triage, write_page

FOUND = Triage({"group-1": Group(np.arange(4), "<left>", "a & b", similar=np.arange(6, 8))}, np.arange(4, 6))


def test_a_page_of_images_allows_its_own_script_only(tmp_path):
    images = Dataset(np.zeros((9, 1, 4, 4), np.uint8), None, (), "inbox")
    page = write_page(FOUND, tmp_path, images, [f"{row}.png" for row in range(9)], ["<left>"]).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.replace("&#39;", "'")
    assert "data:image/svg+xml" in page
    assert "http" not in re.sub(r"data:[^\"]*|http-equiv", "", page)
    assert 'data-nearest="&lt;left&gt;"' in page
    assert 'value="a &amp; b"' in page
    assert "6 of 9 inputs" in page
    assert "2 more inputs resemble these" in page
    assert 'max="2" value="2"' in page


def test_a_page_of_rows_shows_their_columns(tmp_path):
    rows = Dataset(np.arange(18, dtype=np.float32).reshape(9, 2), None, (), "inbox", feature_names=("width", "height"))
    page = write_page(FOUND, tmp_path, rows, [f"row {row}" for row in range(9)], ["left"]).read_text()
    assert '<th scope="col">width</th>' in page
    assert "<td>row 3</td><td>6</td><td>7</td>" in page
    assert "<td>2: row 7</td><td>14</td><td>15</td>" in page
    empty = write_page(Triage({}, np.zeros(0, np.int64)), tmp_path, rows, [], ["left"]).read_text()
    assert "There are no groups" in empty
