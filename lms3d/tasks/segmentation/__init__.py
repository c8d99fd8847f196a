"""Any organ: volumes with any channels, labels or regions."""
