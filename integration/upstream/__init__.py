"""What upstream has, and how to send it what it lacks."""
