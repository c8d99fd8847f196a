"""Every figure that a command draws."""
