"""What a power sensor is like: how long a read takes, how often it moves, in which steps, and how it averages."""
