"""Cost tables without layout: views with rows per op, line, scope, kernel or dispatch site, and their columns."""
