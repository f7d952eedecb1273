"""An example of a package that extends tracemap: a reader, an export and a rule of advice."""
