"""Foundations of all rooms: errors, units, records as JSON, files, processes and IREE's tools."""
