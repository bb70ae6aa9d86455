// Internal to dag/incremental: where the elements of a value lie that is only moved, and perhaps repeated,
// from another one. A dim is a product of spans, the outermost first, each with its stride in the source.
// Pure.
#pragma once

#include <vector>

#include "dag/attributes.h"
#include "dag/graph.h"

namespace weft::dag::incremental {

class Arrangement {
 public:
  struct Span {
    int64_t size = 1;
    int64_t stride = 0;  // elements of the source; 0: the same element again
  };

  // The source itself.
  explicit Arrangement(const Shape& shape);

  const std::vector<std::vector<Span>>& dims() const { return dims_; }
  // Whether the last dims, `most` of them, or those before have the same element more than once.
  bool repeats_in_last(size_t most) const;
  bool repeats_before_last(size_t most) const;

  void transpose(const Ints& perm);
  void expand(const Shape& shape);
  // Whether the elements can be told apart so.
  [[nodiscard]] bool reshape(const Shape& shape);
  void drop_repeats();

  // The elements in their order, of a value that holds the source. REQUIRES: nothing repeats.
  ValueId make(GraphBuilder& builder, ValueId source) const;

 private:
  std::vector<Span> spans() const;
  std::vector<std::vector<Span>> dims_;
};

}  // namespace weft::dag::incremental
