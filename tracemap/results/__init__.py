"""Results of the Python API, with tables for Arrow and pandas, views for notebooks, lookups and pages.

The classes extend the records of other packages, which do not depend on this one.
"""
