"""The Content-Security-Policy of a page that consists of itself alone."""

from __future__ import annotations

import base64
import hashlib


def content_policy(style: str, *scripts: str) -> str:
    """Nothing may be loaded, and only this style and these scripts, named by their hashes, take effect."""
    # Neither 'unsafe-inline' nor a URL: text that slipped through unescaped would still not run, load or send anything.
    own = f"style-src {_hash_source(style)}; script-src {' '.join(map(_hash_source, scripts))}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
