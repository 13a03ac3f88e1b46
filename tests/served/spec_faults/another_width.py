"""Fault: DFLASH's verify input says a row more than the worker chose."""

from stand_ins.hook import after, replace


@after("sglang.srt.speculative.dflash_info")
def say_another_width(module):
    def prepare_for_verify(self, *arguments, **options):
        prepared = original(self, *arguments, **options)
        self.draft_token_num += 1
        return prepared

    original = replace(module.DFlashVerifyInput, "prepare_for_verify", prepare_for_verify)
