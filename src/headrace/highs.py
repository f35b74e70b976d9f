"""HiGHS, the solver of linear and integer programs, without a word on stdout: a banner there would
be read as part of what `--json` prints."""

import highspy


class SilentHighs(highspy.Highs):  # type: ignore[misc]  # untyped there
    """HiGHS 1.16 prints its banner when callbacks are enabled, which its constructor does before
    anyone can set an option."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()
