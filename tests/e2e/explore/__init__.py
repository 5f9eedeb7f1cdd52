"""``make explore``: random programs on real workers that are killed, compared with what an independent model says."""
