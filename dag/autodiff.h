// Reverse-mode differentiation, graph to graph: the result is an ordinary graph whose Backward ops are from
// the same closed set, so that a peer can run any part of it, and `split` cuts forward and backward alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// `graph` with, for every initializer of role Parameter that the loss depends on, an output of role Gradient
// that holds d loss / d parameter for one microbatch.
//
// The terms of a value's cotangent are added from left to right in reverse topological order of the value's
// users (operand order within a user): an order fixed here, before any split, which is what makes the sums'
// bits independent of the cut. Ops that no output needs are dropped.
//
// Errors: InvalidArgument when there is no scalar output of role Loss; Unsupported, naming every op at once,
// when a cotangent reaches an op without a vjp.
Result<Graph> differentiate(const Graph& graph, const OpTable& table);

// What a piece of a larger graph shares with the others, when it is differentiated by itself. A use is an
// operand of an op of the whole, and uses have a place there: the op's index in the whole, then the operand.
struct Use {
  uint32_t op = 0;
  uint32_t operand = 0;
  auto operator<=>(const Use&) const = default;
};
struct Border {
  // Values of Input ops that other pieces made and whose cotangent they want. Each use here gives one term,
  // an output of role Cotangent: terms travel apart, for adding them here would re-associate the sum.
  std::vector<ValueId> received;
  // Values made here that others read: outputs of role Activation, once for each name.
  std::vector<std::pair<std::string, ValueId>> sent;
  // Terms that come from uses elsewhere, each through an Input op of that name.
  struct Term {
    ValueId value;  // made here
    Use use;
    std::string name;
  };
  std::vector<Term> terms;
  std::vector<uint32_t> index_in_whole;  // by op of the piece; of a received value its producer's
};
// The name of the term that a use gives.
std::string term_name(const Use& use);

// The piece with its backward: the same ops that `split` deals to this stage from the differentiated whole
// (law 1: differentiate and split commute). A piece needs no loss where terms come in.
Result<Graph> differentiate_piece(const Graph& piece, const Border& border, const OpTable& table);

// Copies `graph` without the ops that no output depends on.
Graph prune(const Graph& graph, const OpTable& table);

}  // namespace weft::dag
