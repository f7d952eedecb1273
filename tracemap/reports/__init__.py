"""What commands print and write: text for terminals, pages, CSV and JSON.

From the bottom up: `escaping` (what becomes of hostile text) and `labels`; `costed` (a map with the costs of a run),
`kernels` (the inside of one), and `html` (how a page is put together); `page` (the annotated page, a file
for each kind of its tabs), `lowering` and `calls` (the pages of `lower` and `stats`), `terminal` and `json` (a file for
each command's text and JSON). Page data, plain frozen records, is built first; templates and scripts in `assets` only
show it.
"""
