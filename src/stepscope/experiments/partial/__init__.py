"""Training only a part of a model: what it costs, what it saves, and how good the model becomes."""
