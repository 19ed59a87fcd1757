"""What each entry point promises: clauses in firing order, documented errors, their pages."""
