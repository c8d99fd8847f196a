"""What the tasks on volumes share: label maps, and how they are predicted and scored."""
