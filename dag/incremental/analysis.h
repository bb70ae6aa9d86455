// Internal to dag/incremental: where the sequence lies in every value of a forward graph, and what each op
// asks of its operands. Pure.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/incremental/axes.h"

namespace weft::dag::incremental {

// Of a pair of positions: what a value holds where the key comes after the row.
enum class Future : uint8_t {
  Open,    // anything
  Masked,  // at most `ceiling`, which is -1e4 or less: its exponential beside others is 0
  Zero,
};

struct Trait {
  bool free = true;  // the same for all tokens; its axes are not known
  Axes axes{};
  Future future = Future::Open;
  double ceiling = 0;
  // The product that made pairs of two rows, for values with a Key.
  OpId pairs_by{};

  bool is_pair() const { return !free && axes.has(Digit::Key); }
};

enum class Use : uint8_t {
  Absent,
  Rows,   // as it is, of the positions that are computed
  Keys,   // of all positions so far: by way of a cache
  Table,  // free, and taken at the positions that its axes name
};
struct Operand {
  Use use = Use::Absent;
  Axes axes{};  // as the op sees it
};

struct Analysis {
  const Graph* graph = nullptr;
  int64_t length = 0;                          // positions of the whole sequence
  std::vector<Trait> values;                   // by value
  std::vector<std::vector<Operand>> operands;  // by op; of free ops empty
  bool is_free(OpId op) const { return values[graph->op(op).outputs[0].index].free; }
};

// A free value, computed.
using Fold = std::function<Result<Tensor>(ValueId)>;

// `tokens`: an input of shape [1, T] or [T]. Errors: Unsupported, naming the op and why a position would need
// later ones or could not be told from its neighbours; what `fold` says.
Result<Analysis> analyse(const Graph& graph, ValueId tokens, const Fold& fold);

}  // namespace weft::dag::incremental
