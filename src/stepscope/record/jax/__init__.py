"""The recorder of a training with JAX (experimental): steps, ops by their HLO, layers by named scopes."""
