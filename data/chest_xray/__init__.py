"""Chest X-rays: the collection, its split by patient, shards, and batches."""
