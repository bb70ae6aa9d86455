// The memory plan of a graph on one backend, decided before anything runs: which groups run in which order,
// where every value lies, and how many bytes that takes. Pure: no memory is taken here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "peer/backend/backend.h"

namespace weft::peer {

// The groups of a graph in its order, each with what it reads and writes. Leaves belong to no group. `kept`:
// values that somebody reads who is not in the graph (another stage).
std::vector<GroupSignature> group_signatures(const dag::Graph& graph,
                                             std::span<const dag::ValueId> kept = {});

// Offsets for blocks that live over intervals of time, so that blocks alive together do not overlap.
struct Block {
  Bytes size;
  uint32_t first = 0;  // time of the first and last use, both included
  uint32_t last = 0;
  int64_t offset = 0;  // result
};
// Greedy by size: each block at the lowest offset where it fits among those already placed. Returns the
// arena's size. O(n^2). Sizes are rounded up to `alignment`.
Bytes place_blocks(std::span<Block> blocks, int64_t alignment);

// Where a value lies.
enum class Residence : uint8_t {
  Inside,       // only within its group: no memory
  Arena,        // in the microbatch's arena
  Scratch,      // in the memory that all microbatches share: lives within one segment
  Initializer,  // persistent: slot = index of the initializer
  Constant,     // persistent: slot = index of the constant
  Step,         // in the memory of what is made once a step
  Gradient,  // persistent: slot = index among gradient outputs; a range's first microbatch writes it in place
  Bound,     // where whoever runs the graph says: slot = index in ProgramOptions::bound
};
struct Place {
  Residence residence = Residence::Inside;
  uint32_t slot = 0;
  // Arena, Scratch and Step: bytes from its start. Gradient: where in Scratch, or in Arena in a graph without
  // segments, later microbatches write to.
  int64_t offset = 0;
};

struct ProgramOptions {
  // Several microbatches a step: gradients of the later ones need memory of their own before they are added.
  bool accumulates = false;
  // Values, beside outputs, that stay readable until the end of their segment (what a stage sends).
  std::vector<dag::ValueId> kept{};
  // Inputs and outputs that lie in memory of somebody else's, said anew for each run. Nothing of theirs is
  // overwritten but by their own op, and by CacheWrite. An output that shows what lies elsewhere (an input, a
  // weight, another such output) is not Bound: it has to be copied.
  std::vector<dag::ValueId> bound{};
  // By op, ascending: other microbatches run between two segments. Empty: the microbatch runs in one go and
  // has all its values, which stay readable, to itself.
  std::span<const uint32_t> segment_of_op{};
};

struct Program {
  std::vector<GroupSignature> groups;   // what runs, in order (views are left out: they are aliases)
  std::vector<Place> places;            // by value
  Bytes arena;                          // each microbatch in flight
  Bytes scratch;                        // whichever microbatch runs
  Bytes step;                           // all microbatches of a step: of dag/once_a_step.h
  std::vector<bool> runs_once;          // by group: it makes what lies there
  Bytes workspace;                      // likewise: the largest of the kernels'
  std::vector<dag::ValueId> gradients;  // by gradient slot
  // Gradient values that share their bytes with another output and are copied there after group `group`.
  struct Copy {
    dag::ValueId from;
    uint32_t slot;
    uint32_t after_group;
  };
  std::vector<Copy> gradient_copies;
};

// REQUIRES: kernels[i] belongs to groups[i], which are group_signatures(graph, options.kept) less the views.
Program plan_program(const dag::Graph& graph, const Backend& backend, std::vector<GroupSignature> groups,
                     std::span<const std::unique_ptr<Kernel>> kernels, const ProgramOptions& options);

// Whether the group is a lone op whose output is its operand's bytes under another shape, and which needs no
// kernel: all but those that make a gradient or a statistic out of what another stage sends.
bool is_view(const dag::Graph& graph, const GroupSignature& group);

}  // namespace weft::peer
