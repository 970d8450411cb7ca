"""Steps of proactive training: their new samples, the prequential error, the guard that undoes steps, and statistics of the stream."""
