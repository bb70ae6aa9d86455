// A small model for each operator that is imported, and what may be done to its nodes: a test does all of it,
// the fuzzer what its bytes say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dag/onnx/schema.h"

namespace weft::onnx::testing {

struct OperatorCase {
  std::string op;    // "Conv", "com.microsoft.Gelu"
  std::string name;  // of the case: its line, or what the model is
  pb::ModelProto model;
};
// In a fixed order; at least one for each operator.
const std::vector<OperatorCase>& operator_cases();

// Each takes a place (which input, output, attribute or tensor) and a form, of which there are some.
enum class Mutation {
  DropInput,
  EmptyInput,
  DoubleInput,
  CutInputs,   // from the place on
  OtherInput,  // the place reads what another does
  DropOutput,
  EmptyOutput,
  AddOutput,   // one more behind the last; form 1: the model returns it
  CutOutputs,  // from the place on
  DropAttribute,
  EmptyAttribute,
  DoubleAttribute,
  ChangeAttribute,
  ChangeShape,  // of an input or initializer of the model
  ChangeType,   // the same
  ChangeOpset,
};
inline constexpr int kMutationCount = static_cast<int>(Mutation::ChangeOpset) + 1;
std::string_view to_string(Mutation mutation);

// Nodes of the model, those within subgraphs included.
int count_nodes(const pb::ModelProto& model);
// Whether there is such a place and form; the model has changed then. What is not produced any more leaves
// the model's outputs.
bool mutate(pb::ModelProto& model, int node, Mutation mutation, int place, int form);

// All that may be done with a model before it computes: parse, inspect, import for training and for
// inference, differentiate, write its twin; and, where it is small, what its graph computes. Returns whether
// it can be imported for training. Errors of all kinds are fine; a crash is what this looks for.
bool use_model(const pb::ModelProto& model);

}  // namespace weft::onnx::testing
