"""How the map is made: tagging, members, sites, fates, cost; `build` puts them together."""
