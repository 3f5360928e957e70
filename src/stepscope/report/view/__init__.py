"""A local web page over a folder of runs: what is listed, who may look, what is drawn, and the server."""
