// Softmax, its logarithm, and the cross entropy of labels, along lines in one piece.
#pragma once

#include "peer/backend/cuda/kernels/lines.h"

namespace weft::peer::cuda {

// y = e^x / sum of e^x, or its logarithm; y may be x.
struct Softmax {
  Lines lines;
  Array<const float> x;
  Array<float> y;
  int32_t logarithm;
};
// dx = (dy - sum of dy y) y, of the logarithm dy - e^y sum of dy; dx may be dy or y.
struct SoftmaxGrad {
  Lines lines;
  Array<const float> dy, y;
  Array<float> dx;
  int32_t logarithm;
};
extern const EntryOf<Softmax> k_softmax, k_softmax_warp_8, k_softmax_warp_32, k_softmax_block_8,
    k_softmax_block_16;
extern const EntryOf<SoftmaxGrad> k_softmax_grad, k_softmax_grad_warp_8, k_softmax_grad_warp_32,
    k_softmax_grad_block_8, k_softmax_grad_block_16;
inline const LineForms<Softmax> kSoftmaxForms{k_softmax, k_softmax_warp_8, k_softmax_warp_32,
                                              k_softmax_block_8, k_softmax_block_16};
inline const LineForms<SoftmaxGrad> kSoftmaxGradForms{k_softmax_grad, k_softmax_grad_warp_8,
                                                      k_softmax_grad_warp_32, k_softmax_grad_block_8,
                                                      k_softmax_grad_block_16};

// What the labels of lines are, and what they count for.
struct Labels {
  Array<const int32_t> narrow;  // either
  Array<const int64_t> wide;
  Array<const float> weight;  // of classes; none: each counts as one
  int64_t classes;
  int64_t ignored;
  int32_t has_ignored;
};

// lse = log of the sum of e^logits, and each line's part of the loss.
struct LineLosses {
  Lines lines;
  Labels labels;
  Array<const float> logits;
  Array<float> lse, losses;
};
extern const EntryOf<LineLosses> k_line_losses;

// Sums over kTotalledLabels lines a block, in double: partials[2 b] of losses (0 without them), and [2 b + 1]
// of the labels' weights.
inline constexpr int64_t kTotalledLabels = 4096;
struct PartialTotals {
  Labels labels;
  Array<const float> losses;
  Array<double> partials;
  int64_t count;  // of lines
};
extern const EntryOf<PartialTotals> k_partial_totals;
// By one block.
struct Totals {
  Array<const double> partials;
  Array<float> loss;           // the sum of losses, by that of weights for a mean; or absent
  Array<double> total_weight;  // or absent
  int32_t mean;
};
extern const EntryOf<Totals> k_totals;

// What each line's slope is multiplied with: dloss weight (/ total weight).
struct LossFactors {
  Labels labels;
  Array<const float> dloss;          // one, or one a line
  Array<const double> total_weight;  // or absent
  Array<float> factors;
};
extern const EntryOf<LossFactors> k_loss_factors;
// dx = factor (e^(logits - lse) - [class is the label]); 0 where ignored. dx may be the logits.
struct CrossEntropyGrad {
  Lines lines;
  Labels labels;
  Array<const float> logits, lse, factors;
  Array<float> dx;
};
extern const EntryOf<CrossEntropyGrad> k_cross_entropy_grad;

}  // namespace weft::peer::cuda
