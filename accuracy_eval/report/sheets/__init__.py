"""The table sheets of the workbooks: which columns and rows each holds."""
