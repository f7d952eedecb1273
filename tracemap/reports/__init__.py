"""Outputs of the commands: terminal text, pages, CSV, JSON and exports.

`escaping` makes untrusted text harmless; `cost_lookup` joins a map with the costs of a run; `kernels` has views of
kernels; `views` has the rows of tables. `html` assembles pages from the files in `assets`. `page`, `diff`,
`lowering_page`, `stats_page` and `trends_page` have the pages' content as frozen records, which templates and scripts
only show. `terminal`, `csv_tables`, `json_documents` and `exports` write the other formats.
"""
