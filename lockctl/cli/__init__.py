"""The command line: parses, opens the connection, calls one operation, hands its result to render."""
