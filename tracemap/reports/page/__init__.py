"""The annotated page: its content by tab, and its HTML."""
