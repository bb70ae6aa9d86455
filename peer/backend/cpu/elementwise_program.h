// A group of elementwise ops as a small program that runs block by block: each instruction is one vectorised
// loop over a block of elements whose intermediate values stay in the first-level cache. Every instruction is
// the loop that the op alone would run, on the same blocks, so that fusing never changes a bit.
#pragma once

#include <optional>
#include <vector>

#include "peer/backend/cpu/kernel.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {

struct ElementChoice {
  ElementCode code;
  int operands;  // how many of the op's operands the loop reads
};
// None: no loop for these dtypes.
std::optional<ElementChoice> choose_element_loop(const dag::Graph& graph, const dag::Op& op);

class ElementProgram {
 public:
  // None: the group cannot run as one program (dtypes without a loop, different shapes or layouts).
  static std::optional<ElementProgram> compile(const KernelRequest& request);

  void run(const Call& call, const Team& team, const LoopTable& loops) const;
  // By output: the input whose buffer it may take over, or -1.
  std::vector<int> in_place() const;
  size_t instruction_count() const { return instructions_.size(); }

 private:
  struct Place {
    enum Kind { Input, Output, Buffer } kind = Buffer;
    int index = -1;
    int64_t element_size = 4;
  };
  struct Instruction {
    ElementCode code;
    Place out;
    Place in[3];
    int operands;
    float p0 = 0, p1 = 0;
    uint32_t key = 0, threshold = 0;
  };
  // A stretched operand, copied into a buffer block by block; a scalar only once.
  struct Load {
    int input;
    int buffer;
    int64_t element_size;
    bool scalar;
    Walk walk;
  };

  class Builder;
  void run_blocks(const Call& call, const LoopTable& loops, int64_t begin, int64_t end) const;

  static bool draws(ElementCode code);
  uint64_t first_place(ElementCode code, const StepContext& context) const;

  int64_t count_ = 0;    // elements
  int64_t leading_ = 0;  // of them: the first dim
  int buffers_ = 0;
  std::vector<Instruction> instructions_;
  std::vector<Load> loads_;
  std::vector<dag::DType> input_dtypes_, output_dtypes_;
};

}  // namespace weft::peer::cpu
