#include "configs/job_keys.h"

namespace weft::configs {
namespace {

constexpr JobKey kOutput[] = {
    {.path = "output",
     .meaning =
         "The file that is written: the trained model, or for `task: predict` the npz file with an array for "
         "each output, which has to be named. Its folder must exist. Given by `--set`, the path is relative "
         "to "
         "the current folder. In place of the path there may be a map, which says how a trained model is "
         "written.",
     .example = "output: trained.onnx",
     .otherwise = "trained.onnx",
     .otherwise_words = "`trained.onnx`; with `task: predict` it is required",
     .takes = "a path, or a map"},
    {.path = "output.path",
     .meaning = "The file, where `output` is a map.",
     .example = "output: {path: tuned.onnx, base: link}",
     .otherwise = "trained.onnx"},
    {.path = "output.base",
     .meaning =
         "Where the numbers that nobody trained are afterwards. With `copy` the files that are written have "
         "them. With `link` those in the model's external data files stay there, and the trained file names "
         "them: keep these files where they are. Goes where they lie in the folder of `output` or beneath "
         "it.",
     .example = "output: {path: tuned.onnx, base: link}",
     .otherwise = "copy"},
    {.path = "output.merged",
     .meaning =
         "The type in which weights that adapters were merged into are written: `float32`, `float16` or "
         "`bfloat16`. They are computed with as they were before.",
     .example =
         "adapters: {type: lora, targets: [\"*.q_proj*\"]}\noutput: {path: tuned.onnx, merged: bfloat16}",
     .otherwise_words = "that of the model's file; `float16` for what it keeps in int8 or int4"},
};

}  // namespace

std::span<const JobKey> output_job_keys() { return kOutput; }

}  // namespace weft::configs
