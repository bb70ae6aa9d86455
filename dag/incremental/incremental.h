// From a causal graph over a whole sequence to graphs that compute a few positions at a time and keep what
// later positions look at (the keys and values of attention) in caches. Pure.
//
// The graph falls into parts that take turns. A row part computes each position by itself: its rows may be
// of many sequences, packed. An attending part computes positions of one sequence, which look at the caches
// of that sequence. Row part 0 comes first, then attending part 0, row part 1, and so on; the last is a row
// part that makes the logits.
//
// What passes from part to part are rows: a value of R positions is [R, width], whatever form the model has
// it in. Graphs for any number of rows and any capacity read the same weights, by the names of the source's
// initializers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// What a row of a value that passes from part to part holds.
struct RowSpec {
  std::string name;  // of the input or output of the parts' graphs
  DType dtype = DType::F32;
  int64_t width = 0;  // elements
  bool operator==(const RowSpec&) const = default;
};

// What attention keeps of a sequence.
struct CacheSpec {
  std::string name;  // of the attending part's input
  DType dtype = DType::F32;
  Shape shape;                              // of one position: the axis of positions is left out
  int64_t axis = 0;                         // where it goes
  TensorSpec with(int64_t capacity) const;  // for so many positions
  Bytes bytes_a_position() const;
};

struct PartInterface {
  std::vector<RowSpec> inputs, outputs;
  std::vector<CacheSpec> caches;  // of attending parts
};

struct IncrementalOptions {
  std::string tokens;  // the input that is the sequence: i64 or i32 [1, T] or [T]
  std::string logits;  // the output that is read; empty: the first
  // Computes one op: what a mask holds, over all T x T pairs. An absent optional operand is nullptr.
  std::function<Result<std::vector<Tensor>>(const Op& op, std::span<const Tensor* const> inputs,
                                            std::span<const TensorSpec> outputs)>
      evaluate;
  // Of initializers that masks and tables hang on. May lack others.
  const Weights* weights = nullptr;
  // Reads one that `weights` lacks, for who has them elsewhere. May be empty.
  std::function<Result<Tensor>(const std::string& name)> read{};
  // Numbers that all masks together may take to compute: some ten tables over 8192 x 8192 positions.
  int64_t folded_elements_max = int64_t{1} << 30;
};

class Incremental {
 public:
  // Errors: NotFound for an input or output that is not there; Unsupported, naming the op and the reason, for
  // what mixes positions otherwise than by masked attention; what `evaluate` says. `graph` is a forward graph
  // after canonicalise(), with a batch of 1.
  static Result<Incremental> derive(std::shared_ptr<const Graph> graph, const OpTable& table,
                                    const IncrementalOptions& options);
  ~Incremental();
  Incremental(Incremental&&) noexcept;
  Incremental& operator=(Incremental&&) noexcept;

  // T: no position is beyond it, no cache needs to be larger.
  int64_t context() const;
  size_t row_parts() const;  // there is one attending part fewer
  size_t attending_parts() const { return row_parts() - 1; }
  const PartInterface& row_part(size_t part) const;
  const PartInterface& attending_part(size_t part) const;
  RowSpec tokens() const;  // an input of row parts, most likely of part 0 alone
  RowSpec logits() const;  // the output of the last row part

  // Inputs: those of the interface [rows, width], and "positions" i64[rows], in [0, context); outputs
  // likewise, as OutputRole::Activation. REQUIRES: rows >= 1.
  Graph rows(size_t part, int64_t rows) const;
  // Beside them the caches, of capacity positions, as inputs; each also is an output, by the same name, with
  // the new rows in it. A row whose position is negative writes nothing, and what it computes means nothing.
  // REQUIRES: 1 <= rows, 1 <= capacity <= context.
  Graph attending(size_t part, int64_t rows, int64_t capacity) const;

  // Initializers of which the values were read, ascending: masks and tables hang on them. With these alone as
  // IncrementalOptions::weights the same graph derives to the same parts, on any machine.
  const std::vector<std::string>& read_weights() const;

  // Masks and other large constants, which the graphs read as initializers of these names.
  Weights tables() const;

  static constexpr const char* kPositions = "positions";

 private:
  struct Impl;
  explicit Incremental(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dag
