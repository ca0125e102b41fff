"""What others do to the files of a dataset: accidents from outside, and the law that must hold afterwards.

`test_table.py` runs the table: each accident, in each kind of segment, in the dataset and in its archive, followed by
each order of commands. `law.py` is the oracle that judges all of them. `waiting.py` names what does not hold yet.
"""
