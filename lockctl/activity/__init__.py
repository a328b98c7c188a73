"""What the server's sessions do: who waits for whom."""
