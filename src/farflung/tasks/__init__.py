"""What is learned: batches of a part, their loss, and metrics that add up across trainers."""
