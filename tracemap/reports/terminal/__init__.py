"""Printed texts of the commands, one file per command, and the drawing of tables."""
