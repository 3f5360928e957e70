"""The power modes of a Jetson: trained in each of them, with the mode of before put back whatever happens."""
