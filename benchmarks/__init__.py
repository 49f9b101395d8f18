"""How fast besnn is, beside what a user would otherwise run and beside what the machine could do at most."""
