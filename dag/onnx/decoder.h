// Causal language models as exporters write them: which input is the tokens, which output the logits, and
// what the other inputs are where a whole sequence is computed at once. Files that bring a cache of their own
// (past_key_values.* to present.*) are imported without it: the past has length zero.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"

namespace weft::onnx {

struct DecoderPorts {
  std::string tokens, logits;  // an input and an output
  int64_t length = 0;          // positions of the sequence
  bool has_past = false;       // the file has a cache
  // Parts of ImportOptions. Every input but the tokens is bound.
  std::map<std::string, dag::Shape> input_shapes;
  std::map<std::string, dag::Tensor> bound_inputs;
  std::vector<std::string> left_out;  // outputs
};

// `length`: of the sequence, where the file leaves it open. By name are known: attention_mask (ones),
// position_ids and cache_position (0, 1, ..), token_type_ids (zeros), use_cache_branch (false), past*
// (nothing). The one integer input that is left is the tokens; input_ids where there are several.
//
// Errors: InvalidArgument where the file leaves the length open and nobody says it, or fixes another one;
// Unsupported, naming the port, for inputs of another meaning, for a batch that is not 1, for a past of a
// fixed length, and where no input is tokens or no output logits.
Result<DecoderPorts> find_decoder(const OnnxModel& model, std::optional<int64_t> length);

// The options that import the model as a graph of the whole sequence, in inference.
ImportOptions import_options(const DecoderPorts& ports, Evaluator evaluate);

}  // namespace weft::onnx
