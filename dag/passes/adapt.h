// Low-rank adapters (LoRA) beside weights that are not trained themselves. A weight W from `in` to `out` then
// computes as W + scale * B A would, with A of [rank, in] and B of [out, rank]; the product is never made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/adapter_terms.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// What stands beside one weight.
struct Adapter {
  enum class Form : uint8_t { Linear, Table, Convolution };

  std::string weight;  // its initializer
  std::string node;    // for people: the first op that reads it, as the file names it
  Form form = Form::Linear;
  bool in_first = false;  // W is [in, out]; otherwise [out, in], of a convolution with ones behind
  int64_t rank = 0;
  double alpha = 0, dropout = 0;

  double scale() const { return alpha / static_cast<double>(rank); }
  // Initializers of role Parameter, F32.
  std::string a() const { return weight + ".lora_A"; }
  std::string b() const { return weight + ".lora_B"; }
  bool operator==(const Adapter&) const = default;
};
// Of the factors, for a weight of that shape: [rank, in] and [out, rank], of a convolution with ones behind.
TensorSpec a_spec(const Adapter& adapter, const Shape& weight);
TensorSpec b_spec(const Adapter& adapter, const Shape& weight);

// Whether the pattern names an initializer, or a node that reads one as a weight.
bool is_target(const Graph& graph, std::string_view pattern);

struct Adapted {
  Graph graph;
  std::vector<Adapter> adapters;  // in the order of initializers
  std::vector<std::string>
      passed;  // what a pattern names, and why it got none, in words; vectors are not told
};
// The graph with an adapter beside each target: matrices that MatMul reads or Gather reads rows of, kernels
// of 1x1 convolutions without groups. Every op that reads the weight gets it. With `trains` what A reads is
// dropped as the terms say. Roles of what was there stay.
//
// A forward graph, after canonicalise() and widen_halves(). Errors: InvalidArgument where a pattern gives no
// adapter, where the rank is above the smaller side, or where the weight has an adapter.
Result<Adapted> adapt(const Graph& graph, const AdapterTerms& terms, bool trains, const OpTable& table);

// W + scale * B A as it lies in the file, each sum in double; in the weight's own bytes where nobody else holds
// them. REQUIRES: all F32 and of the adapter's shapes.
Tensor merge(const Adapter& adapter, Tensor weight, const Tensor& a, const Tensor& b);

}  // namespace weft::dag
