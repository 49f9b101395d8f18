"""The suite of tables: which of several detectors finds rows unlike those it was trained on."""
