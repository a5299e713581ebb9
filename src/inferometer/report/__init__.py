"""What a run looks like: the report in the terminal, the live view, and exports. All of it is made from the run and its summary."""
