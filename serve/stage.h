// Some parts of an incremental model at work: all of them on one machine, or a stage of a ring. Rows come in
// from the stage before, rows go out to the one behind; the caches of its attending parts stay here.
//
// One thread, that which drives the backend, which outlives the stage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/incremental/incremental.h"
#include "dag/incremental/part_range.h"
#include "dag/tensor.h"
#include "peer/state.h"
#include "serve/pass.h"

namespace weft::serve {

using dag::PartRange;

// What passes from the parts before `part` to those from it on; at 0 the tokens.
std::vector<dag::RowSpec> rows_before(const dag::Incremental& model, uint32_t part);
uint32_t part_count(const dag::Incremental& model);

class Stage {
 public:
  // Ranges ascend and do not touch. `state` may hold weights already; those that are missing are taken from
  // `weights`. Errors: NotFound for a weight that is missing; what Executor::create and State::write say.
  static Result<std::unique_ptr<Stage>> create(std::shared_ptr<const dag::Incremental> model,
                                               std::vector<PartRange> ranges, const dag::Weights& weights,
                                               std::shared_ptr<peer::State> state, int64_t rows_max);
  virtual ~Stage() = default;

  // Runs the parts of a range. `rows`: those of rows_before(its begin). Returns those of rows_before(its
  // end), or, of the last range, the logits: [sum of PassPiece::logits, vocabulary]. A piece whose first
  // position is before the end of what this range has computed begins anew from there; what was behind is
  // forgotten. Errors, after which nothing has changed: InvalidArgument for rows that are missing or of
  // another form, for a sequence twice in a pass, and for a first position that is beyond what has been
  // computed; OutOfRange beyond the context or rows_max; ResourceExhausted when there is no memory for the
  // caches.
  virtual Result<RowTensors> run(size_t range, std::span<const PassPiece> pieces, const RowTensors& rows) = 0;
  // Before a piece of so many rows that ends at `positions` (Decoder::make_room).
  virtual bool make_room(uint64_t, int64_t, int64_t, int64_t) { return false; }
  // Lets its caches go. Unknown sequences are ignored.
  virtual void end(uint64_t sequence) = 0;
  virtual size_t sequences() const = 0;
  // What the caches of a sequence of so many positions take here.
  virtual Bytes bytes_of(int64_t positions) const = 0;
};

}  // namespace weft::serve
