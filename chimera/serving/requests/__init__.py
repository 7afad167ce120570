"""What a request to a server may hold, and what the server says to it."""
