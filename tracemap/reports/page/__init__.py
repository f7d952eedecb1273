"""The annotated page: its data, part by part, and how it is handed to the page's script."""
