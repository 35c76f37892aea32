"""What a few tokens take on a CPU, where each operation costs time of its own."""
