"""Models by their names on the Hugging Face Hub."""
