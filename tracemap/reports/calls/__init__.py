"""Statistics of recorded calls as text, JSON, CSV and page."""
