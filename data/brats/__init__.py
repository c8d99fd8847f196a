"""Brain scans: the layouts of data sets, cases, cubes, and batches."""
