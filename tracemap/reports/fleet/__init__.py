"""The page of a fleet: what changed, and what the dearest ops cost night by night, as small multiples."""
