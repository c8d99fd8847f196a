"""Machines that are not here, as data: what they can do, where each number is from, and what a step would come to on them.

machines/NAME.json -> files.load -> model.MachineModel -> speeds() -> cost.Machine -> any planner, the simulator
                                                                              plan -> outlook.of -> Outlook
"""
