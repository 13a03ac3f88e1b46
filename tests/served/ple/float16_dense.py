"""Not a fault: let the runtime's Qwen4-Exp classes run where they are not meant to.

Their residual streams and n-gram tables are bfloat16 whatever the model's dtype, which the interpreter cannot multiply,
and their experts need GPU kernels. Here both take the model's dtype, and an upstream dense MLP is in the experts' place.
PLE, its pools and its commit are upstream's own. So is the attention, full because the config names no sparse indexer.
"""

import torch
from stand_ins import after, replace


@after("sglang.srt.models.qwen3_5")
def dense_mlp(module):
    class DenseInPlaceOfExperts(module.Qwen2MoeMLP):
        def __init__(self, *, config, quant_config, prefix, **_):
            sizes = config.hidden_size, config.intermediate_size
            super().__init__(*sizes, config.hidden_act, quant_config, reduce_results=False, prefix=prefix)

    replace(module, "Qwen2MoeSparseMoeBlock", DenseInPlaceOfExperts)


@after("sglang.srt.models.qwen4_exp")
def model_dtype(module):
    model = module.Qwen4ExpForConditionalGeneration
    build = model.__init__

    def build_in_model_dtype(self, *arguments, **options):
        build(self, *arguments, **options)
        dtype = torch.get_default_dtype()
        for part in self.modules():
            for name in ("params_dtype", "output_dtype"):
                if getattr(part, name, None) is torch.bfloat16:
                    setattr(part, name, dtype)
        for tensor in [*self.parameters(), *self.buffers()]:
            if tensor.dtype is torch.bfloat16:
                tensor.data = tensor.data.to(dtype)

    replace(model, "__init__", build_in_model_dtype)
