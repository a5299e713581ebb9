"""A report as one self-contained HTML file: no network, light and dark, with charts that zoom."""
