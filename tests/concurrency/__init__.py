"""Many processes and threads on one dataset: one writes, nobody waits for it, nobody sees half of anything."""
