"""The version, in one place for the package and every file it writes."""

__version__ = "0.1.0"
PRODUCER = f"accuracy-eval {__version__}"
