"""How a run looks: the console's table, summary.json, CSV. Everything here is a function of the run and its summary."""
