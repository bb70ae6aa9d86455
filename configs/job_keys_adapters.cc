#include "configs/job_keys.h"

namespace weft::configs {
namespace {

constexpr JobKey kAdapters[] = {
    {.path = "adapters",
     .meaning =
         "What is trained beside the model, all of which is frozen then: an entry, or a list of them. Goes "
         "without `train` and `freeze` ([FINETUNE.md](FINETUNE.md)).",
     .example =
         "adapters: [{type: lora, targets: [\"*.c_attn.weight\"]}, {type: full, targets: [\"*.ln_f.*\"]}]",
     .otherwise_words = "none: the parameters are trained",
     .takes = "a map, or a list of maps"},
    {.path = "adapters.type",
     .meaning = "`lora` puts two small factors beside each target W: the layer computes as W + alpha/rank B "
                "A would. "
                "`full` trains the targets themselves.",
     .example = "adapters: {type: lora, targets: [\"*.q_proj*\", \"*.v_proj*\"]}"},
    {.path = "adapters.targets",
     .meaning =
         "A list of patterns of names of weights; of `lora` also of the nodes that read them, for exporters "
         "that rename weights. Adapters stand beside matrices that MatMul, Gemm and Gather read, and kernels "
         "of 1x1 convolutions.",
     .example = "adapters: {type: lora, targets: [\"*/attn/c_attn/*\"]}",
     .takes = "a list of patterns"},
    {.path = "adapters.rank",
     .meaning = "How many rows the factor A has, and columns B.",
     .example = "adapters: {type: lora, rank: 16, targets: [\"*.q_proj*\"]}",
     .otherwise = "8"},
    {.path = "adapters.alpha",
     .meaning = "What the adapter makes is multiplied by alpha/rank.",
     .example = "adapters: {type: lora, rank: 16, alpha: 32, targets: [\"*.q_proj*\"]}",
     .otherwise_words = "the rank"},
    {.path = "adapters.dropout",
     .meaning = "The part of what an adapter reads that is dropped in training. A table's indices are not.",
     .example = "adapters: {type: lora, dropout: 0.05, targets: [\"*.q_proj*\"]}",
     .otherwise = "0"},
    {.path = "adapters.init",
     .meaning =
         "How A begins: `kaiming` (uniform in 1/sqrt(in) either way) or `normal` (with deviation 1/rank); B "
         "is zero, so that the first step computes what the model does. Of a table A is zero, and B normal. "
         "`zero` is both, and learns nothing. Or the file of adapters to go on from, "
         "`adapter_model.safetensors`.",
     .example = "adapters: {type: lora, init: normal, targets: [\"*.q_proj*\"]}",
     .otherwise = "kaiming",
     .takes = "`kaiming`, `normal`, `zero`, or a file `.safetensors`"},
    {.path = "adapters.names",
     .meaning =
         "A map from regular expressions (ECMAScript) to what takes their place: by each in turn, the name "
         "of a weight without `.weight` becomes the name of the module in the file of adapters.",
     .example = "adapters: {type: lora, targets: [\"*.q_proj*\"], names: {\"^model\\\\.\": \"base.\"}}",
     .otherwise_words = "names are the same",
     .takes = "a map from patterns to texts"},
    {.path = "base",
     .meaning =
         "How the matrices that nobody trains are kept: those that `adapters` or `freeze` leave alone.",
     .example = "base: {store: int4}",
     .otherwise_words = "each as the model's file has it",
     .takes = "a map"},
    {.path = "base.store",
     .meaning =
         "`as_is`: on disk, on the wire and in memory a matrix keeps the type that it has in the model's "
         "file, "
         "and the products that read it make float32 of a part at a time. `float32`: halves are float32 in "
         "memory, and the same bits are computed. `bf16`, `int8`, `int4`: numbers are rounded to so many "
         "bits "
         "before anything starts, so that another model is trained ([FINETUNE.md](FINETUNE.md)).",
     .example = "base: {store: int4}",
     .otherwise = "as_is"},
    {.path = "base.block",
     .meaning = "With `int8` and `int4`: how many numbers share a scale.",
     .example = "base: {store: int4, block: 64}",
     .otherwise = "128"},
};

}  // namespace

std::span<const JobKey> adapter_job_keys() { return kAdapters; }

}  // namespace weft::configs
