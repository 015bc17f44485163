"""What `compare` does: options to configurations, lengths, samples and mixes, to what is printed."""
