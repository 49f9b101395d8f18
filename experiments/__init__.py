"""The paper's tables and figures: they only compose what the library holds."""
