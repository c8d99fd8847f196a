"""What the tasks on volumes share: options, and the material that is learnt from."""
