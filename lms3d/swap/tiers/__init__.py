"""Where swapped tensors live."""
