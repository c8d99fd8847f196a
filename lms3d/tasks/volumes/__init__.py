"""What the tasks on volumes share: options, the material that is learnt from, and label maps and their scores."""
