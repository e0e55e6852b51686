"""How processes of ours are started and what they say: connections, messages, handshakes."""
