"""The page of a comparison: its content and its HTML."""
