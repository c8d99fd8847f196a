"""Plans in these tests do not depend on how busy the machine is: the fixtures of the engine's own tests."""

from tests.lms3d.engine.conftest import fixed_machine, nothing_left_over, tier

__all__ = ["fixed_machine", "nothing_left_over", "tier"]
