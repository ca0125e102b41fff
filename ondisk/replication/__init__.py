"""How one dataset follows another: tokens, and the files that keep them."""
