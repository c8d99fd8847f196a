"""Machines as data, so that steps can be predicted for machines that are not here: rates and sizes, each with its source.

machines/NAME.json -> files.load -> model.MachineModel -> speeds() -> cost.Machine -> any planner, the simulator
                                                                              plan -> outlook.of -> Outlook
"""
