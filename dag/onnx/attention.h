// Internal to dag/onnx: what the operators of attention have in common, whatever their domain.
#pragma once

#include <optional>
#include <vector>

#include "dag/onnx/lowering.h"

namespace weft::onnx {

// q [B, H, S, D], k [B, G, T, D], v [B, G, T, E]; H is a multiple of G, and H / G neighbouring heads of q
// share one head of k and v.
struct AttentionForm {
  Item q, k, v;
  std::optional<double> scale;  // 1 / sqrt(D) when absent
  double softcap = 0;           // scores become softcap * tanh(scores / softcap); 0: they stay
  // Before the softmax, each broadcast to [B, H, S, T]: first the biases are added, then only the scores
  // where all of `allowed` hold count.
  std::vector<Item> biases;
  std::vector<Item> allowed;
  std::optional<DType> softmax_dtype;
};
struct AttentionResult {
  Item y;              // [B, H, S, E]
  Item scores;         // of the product alone, scaled
  Item biased;         // with softcap, biases and masks
  Item probabilities;  // after the softmax
};
Result<AttentionResult> attend(NodeContext& node, const AttentionForm& form);

// Bool [S, T]: key j is allowed to query i when j <= i + offset.
Result<Item> causal_mask(NodeContext& node, int64_t queries, int64_t keys, int64_t offset);
// Bool [B, 1, 1, T]: j < lengths[b], for integers of shape [B].
Result<Item> length_mask(NodeContext& node, const Item& lengths, int64_t keys);

// [B, S, H * D] to [B, H, S, D], and back.
Result<Item> split_heads(NodeContext& node, const Item& x, int64_t heads);
Result<Item> merge_heads(NodeContext& node, const Item& x);

// Pairs of elements of the last dim turned by angles. `cos`, `sin`: [.., dims / 2], broadcast against x
// without its last dim. Elements beyond 2 * cos.shape.back() stay. interleaved: pairs are neighbours, not
// halves.
Result<Item> rotate(NodeContext& node, const Item& x, const Item& cos, const Item& sin, bool interleaved);

}  // namespace weft::onnx
