// Cuts a graph into the sub-graphs of stages. Because autodiff and lowering came before, the pieces together
// hold exactly the ops of the whole, every sum with its terms in the whole's order: the cut cannot change a
// bit as long as all stages are of one class of devices.
//
// A stage need not be contiguous: it may own the first and the last op while others own the middle. Its ops
// then fall into several segments, each of which can run once what it receives has come.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/cut.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// A value that crosses a cut, once from its owner to each stage that needs it.
struct CutEdge {
  ValueId value;  // in the whole graph
  uint32_t from_stage = 0;
  uint32_t to_stage = 0;
  ValueId sent;  // in the graph of from_stage
  // In the graph of to_stage: the output of an Input op, of the sent value's spec, in the layout of the
  // stage's class.
  ValueId received;
};

struct StageGraph {
  Graph graph;
  // By op of `graph`: the segment it runs in. Segments run in ascending order.
  std::vector<uint32_t> segment_of_op;
  uint32_t segment_count = 0;
  // By op of `graph`: the op of the whole; for a received value its producer; for a Reorder that lowering put
  // in the op that reads it first.
  std::vector<OpId> op_in_whole;
};

struct Split {
  std::vector<StageGraph> stages;
  std::vector<CutEdge> cut_edges;  // ordered by value, then to_stage
};

// The stage of every op from the stages of the forward ops: a backward op belongs where its origin does, an
// initializer where its gradient or new running statistic is made.
// REQUIRES: stage_of_forward_op.size() == graph.ops().size(); entries of backward ops are not read.
std::vector<uint32_t> stages_by_origin(const Graph& graph, std::span<const uint32_t> stage_of_forward_op);

// By op: a sum of two cotangents that runs alone wherever it runs, in `graph` and as each class has it: it
// may be made where its terms are, in the order and by the kernel of the whole.
std::vector<bool> movable_sums(const Graph& graph, std::span<const std::shared_ptr<const Lowered>> classes);
// Such sums whose terms both come from one other stage, made there: one value crosses instead of two. A
// residual's cotangent is one. `users`: graph.users().
std::vector<uint32_t> move_sums(const Graph& graph, const std::vector<bool>& movable,
                                const std::vector<std::vector<OpId>>& users,
                                std::vector<uint32_t> stage_of_op);
std::vector<uint32_t> move_sums(const Graph& graph, std::span<const std::shared_ptr<const Lowered>> classes,
                                std::vector<uint32_t> stage_of_op);

// Each stage's ops as its class has them. Constants and buffers that several stages read are copied to each,
// and so are the Reorders that lowering put in; everything else crosses as a cut edge.
// Errors: those of cut(); InvalidArgument when a stage has no op, or a gradient is made away from its
// parameter (stages_by_origin sees to that).
Result<Split> split(const CutRequest& request, const OpTable& table);
// Of a graph that all stages run as it is.
Result<Split> split(const Graph& graph, std::span<const uint32_t> stage_of_op, uint32_t stage_count,
                    const OpTable& table);

// A stage's graph for another class of devices than it was made for: what a spare of that class runs when it
// takes the stage over. The segments stay.
struct Relowered {
  StageGraph stage;               // without op_in_whole
  std::vector<ValueId> value_of;  // by value of the graph before; what shows one value is one value
};
Relowered relower(const StageGraph& stage, const BackendTraits& traits, const OpTable& table);

}  // namespace weft::dag
