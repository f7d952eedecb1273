"""Attribution -> page data (frozen dataclasses) -> text, JSON, HTML."""
