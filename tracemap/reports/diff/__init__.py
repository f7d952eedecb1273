"""The page of two bundles or runs compared: its data, part by part, and how it is handed to the page's script."""
