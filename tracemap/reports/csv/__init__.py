"""Tables for spreadsheets and scripts."""
