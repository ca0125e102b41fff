"""The test kit of ondisk.

strategies    hypothesis strategies: configurations, data, metadata values, conditions
model         a dataset as a list of rows in memory: the expected results of append, query and delete
stateful      a state machine that drives a real dataset and the model side by side
crashes       simulates a process that is killed at a call that changes the disk, or in a function

    from hypothesis.stateful import run_state_machine_as_test
    from kit import machine_for

    def test_my_configuration_behaves_as_the_model():
        run_state_machine_as_test(machine_for(my_config))
"""

from kit.model import Model, same
from kit.stateful import DatasetMachine, machine_for
from kit.strategies import EVERY_TYPE, STEPS_OF_TIME

__all__ = ["EVERY_TYPE", "STEPS_OF_TIME", "DatasetMachine", "Model", "machine_for", "same"]
