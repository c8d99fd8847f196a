"""Damaged and hostile input for every reader: what is done to files, and who reads them."""
