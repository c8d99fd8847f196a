"""Brain scans: layouts of data sets, cases, cubes, batches."""
