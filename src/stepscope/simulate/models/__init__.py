"""How each kind of sensor turns power into what its files say; one file each."""
