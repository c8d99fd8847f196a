"""What any planner may ask about a step: its buffers and order, a schedule of decisions, whether that fits, what it costs."""
