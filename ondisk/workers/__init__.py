"""Work on segments or files in several processes: on this machine, or as Spark's executors start them."""
