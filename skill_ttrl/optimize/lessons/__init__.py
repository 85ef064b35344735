"""Memory across steps and epochs: notes on steps, two documents compared, guidance and lessons drawn from that."""
