"""Fault: the release's own line, input embeddings cast to bfloat16 whatever the model's dtype is."""

from stand_ins.hook import after, replace


@after("sglang.srt.model_executor.model_runner")
def cast_to_bfloat16(module):
    def kwargs_in_bfloat16(self, forward_batch, *arguments, **options):
        result = original(self, forward_batch, *arguments, **options)
        if forward_batch.input_embeds is not None:
            result["input_embeds"] = forward_batch.input_embeds.bfloat16()
        return result

    original = replace(module.ModelRunner, "_extend_forward_kwargs", kwargs_in_bfloat16)
