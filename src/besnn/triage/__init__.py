"""What to do with flagged inputs: group them, name the groups, and make the next training data of them."""

from besnn.triage.apply import apply_names
from besnn.triage.groups import Group, Triage, find_groups
from besnn.triage.page import write_page

__all__ = ["Group", "Triage", "apply_names", "find_groups", "write_page"]
