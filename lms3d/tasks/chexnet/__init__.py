"""Findings in chest X-rays."""
