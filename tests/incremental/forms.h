// The forms in which language models are written: each choice by itself, so that a test can have any of them
// together.
#pragma once

#include <string>

#include "tests/incremental/net.h"

namespace weft::incremental::testing {

enum class Mask {
  WhereInfinity,  // Where(mask, scores, -inf)
  AddBillion,     // scores + (0 or -1e9)
  OldGpt2,        // scores * b - 1e4 * (1 - b)
  Comparison,     // keys <= rows, of two ranges
  SliceOfLarger,  // the corner of a larger one, which is an initializer
  CastOfBools,    // scores + (1 - Cast(mask)) * the least float
  Count
};
enum class Positions {
  None,
  Learnt,       // added to the embedding
  Halves,       // rotary, by halves of a head
  Interleaved,  // rotary, by neighbours
  Gathered,     // rotary, tables looked up at position ids
  Computed,     // rotary, tables of Sin and Cos of positions times frequencies
  Alibi,
  Relative,  // a learnt bias by distance
  Count
};
enum class Heads {
  Own,           // as many keys as queries
  Expanded,      // two queries a key, by Expand and Reshape
  Concatenated,  // by Concat of slices
  One,           // one for all
  Count
};
enum class Weighting { Softmax, WrittenOut, WithoutNan, Sigmoid, Count };
enum class Layout {
  Batched,    // [1, H, T, D]
  Folded,     // [H, T, D]
  Rows,       // projected as [T * H, D]
  Explicit,   // keys transposed by an op, scaled on both sides
  Turned,     // scores are K Q^T, normalised along their other axis
  OneProduct  // queries, keys and values of one product, cut apart
};
inline constexpr int kLayouts = 6;
enum class Norm { Layer, Rms, Batch, None, Count };
enum class Mlp { Gelu, GeluTanh, SwiGlu, Relu, Experts, None, Count };

struct Form {
  std::string name;
  Mask mask = Mask::WhereInfinity;
  Positions positions = Positions::Learnt;
  Heads heads = Heads::Own;
  Weighting weighting = Weighting::Softmax;
  Layout layout = Layout::Batched;
  Norm norm = Norm::Layer;
  Mlp mlp = Mlp::Gelu;
  int64_t length = 96, width = 16, head_count = 4, layers = 2, vocabulary = 29;
  int64_t window = 0;  // positions that a row sees; 0: all before it
  bool batch = true;
  bool tied = false;
  bool parallel = false;      // attention and MLP beside each other
  bool shares_keys = false;   // later layers look at the first layer's keys and values
  bool hands_scores = false;  // of a layer, to be added to those of the next
  bool leaks = false;         // the first row sees the last key; not where ranges are compared
  bool attends = true;
  uint64_t seed = 1;
};

Model make_model(const Form& form);
Form random_form(uint64_t seed);
// Its choices in numbers, for whoever looks for what a failure hangs on.
std::string to_string(const Form& form);

}  // namespace weft::incremental::testing
