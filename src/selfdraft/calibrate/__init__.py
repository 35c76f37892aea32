"""Learning about a model on a device, before it is used: latency, what strategies fit, and how fast they are."""
