"""What `import inferometer` offers to Python code: runs, searches, comparisons, a client for single inferences, and a pytest plugin."""
