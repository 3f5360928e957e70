"""Changes that could make a training faster or smaller, measured in pairs against the training as it is."""
