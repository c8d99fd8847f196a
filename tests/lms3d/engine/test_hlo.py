"""What a program takes besides its inputs and results, from XLA's text."""

from __future__ import annotations

import pytest

from lms3d.engine.hlo import temporary_bytes

TEXT = """HloModule a, is_scheduled=true

%inner (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  ROOT %n = f32[1024]{0} negate(%p)
}

ENTRY %a (arg0: f32[1024], arg1: f32[16]) -> (f32[1024], f32[1024]) {
  %arg0 = f32[1024]{0} parameter(0)
  %arg1 = f32[16]{0} parameter(1)
  %one = f32[1024]{0} fusion(%arg0, %arg1), kind=kLoop, calls=%inner
  %view = f32[32,32]{1,0} bitcast(%one)
  %two = (f32[1024]{0}, pred[1024]{0}) fusion(%view), kind=kLoop, calls=%inner
  %part = f32[1024]{0} get-tuple-element(%two), index=0
  %result = f32[1024]{0} fusion(%part), kind=kLoop, calls=%inner
  %other = f32[1024]{0} fusion(%result, %arg1), kind=kLoop, calls=%inner
  ROOT %out = (f32[1024]{0}, f32[1024]{0}) tuple(%result, %other)
}
"""


def test_intermediate_results_lie_where_results_come_later():
    """At most `one` (4 KiB) and `two` (5 KiB) live at a time, or `two` and `result`; the results take 8 KiB."""
    assert temporary_bytes(TEXT) == (4 + 5 - 8) * 1024


def test_elementwise_programs_take_nothing():
    last = TEXT.index("  %one")
    text = TEXT[:last] + "  ROOT %r = f32[1024]{0} fusion(%arg0, %arg1), kind=kLoop, calls=%inner\n}\n"
    assert temporary_bytes(text) == 0


@pytest.mark.parametrize(
    "text", ["", TEXT[: TEXT.index("  %view")], TEXT.replace("%view = ", "%view: "), "x\nENTRY %a"]
)
def test_what_is_no_module_is_an_error(text):
    """Such a program is not compiled; a part of the text would say too little."""
    with pytest.raises(ValueError, match="expected an instruction"):
        temporary_bytes(text)
