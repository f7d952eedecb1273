"""What the Python API returns, to go on with: as tables of Arrow and pandas, in notebooks, by line or scope, as page.

Each class is that of a room below with ways to show it; the rooms below know nothing of these.
"""
