"""What was published and how it was run."""
