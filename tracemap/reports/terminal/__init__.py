"""What commands print for people: one file for each command's text, and how tables are drawn."""
