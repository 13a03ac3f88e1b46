"""No fault: writes, for every verify of the EAGLE family, requests and rows to the file that VERIFIED_ROWS names."""

import os

from stand_ins.hook import after, replace


@after("sglang.srt.speculative.eagle_worker_v2")
def report_rows(module):
    def run_eagle_verify(batch, **options):
        if not batch.forward_mode.is_idle():
            with open(os.environ["VERIFIED_ROWS"], "a") as file:
                print(len(batch.reqs), batch.spec_info.draft_token.numel(), file=file)
        return original(batch, **options)

    original = replace(module, "run_eagle_verify", run_eagle_verify)
