// A causal model at work: positions of sequences go in, logits come out, and what later positions look at is
// kept with the sequence. A row's bits depend neither on what else is computed in the same pass nor on how
// much room its sequence has, where the backend keeps rows apart (ExecutorOptions::rows_alone).
//
// One thread, that which drives the backend. The backend outlives the decoder, the decoder its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/incremental/incremental.h"
#include "dag/tensor.h"
#include "peer/state.h"
#include "serve/model_limits.h"

namespace weft::serve {

// What a decoder keeps of one sequence.
class Sequence {
 public:
  virtual ~Sequence() = default;
  int64_t length() const { return length_; }  // positions that have been computed

 protected:
  int64_t length_ = 0;
};

// The next positions of a sequence, and how many rows of logits are wanted: those of the last ones.
struct Piece {
  Sequence* sequence = nullptr;
  std::span<const int64_t> tokens;
  int64_t logits = 1;
  int64_t expected = 0;  // positions that memory is taken for at once: all that it may have
};

class Decoder : public ModelLimits {
 public:
  virtual std::unique_ptr<Sequence> begin() = 0;
  // Logits f32[sum of Piece::logits, vocabulary], piece by piece. A sequence is in one piece at most.
  // Errors: OutOfRange for a token that is none, a sequence beyond the context, more than rows_max() rows;
  // ResourceExhausted when there is no memory for a sequence's positions. Then no sequence has changed.
  virtual Result<dag::Tensor> pass(std::span<const Piece> pieces) = 0;
  // Makes ready for a piece of so many rows that ends at `positions`, where it needs more room; `expected` as
  // Piece has it. Says whether that took as long as many rows do. Without memory the pass will say so.
  virtual bool make_room(Sequence& sequence, int64_t positions, int64_t expected, int64_t rows);
  // The sequence as if only its first positions had been computed. REQUIRES: length <= its length.
  virtual void cut(Sequence& sequence, int64_t length) = 0;

 protected:
  // Of pass(): whether these are tokens, and the sequence stays within the context.
  Status check(const Piece& piece) const;
};

struct CachedOptions {
  int64_t rows_max = 64;
};

// Keeps keys and values. `state` belongs to the backend, and may hold weights already; those that it lacks
// are taken from `weights`, which are those of the graph that `model` was derived from. Errors: NotFound for
// a weight that is missing; what Executor::create and State::write say.
Result<std::unique_ptr<Decoder>> make_cached_decoder(std::shared_ptr<const dag::Incremental> model,
                                                     const dag::Weights& weights,
                                                     std::shared_ptr<peer::State> state,
                                                     const CachedOptions& options = {});

// Computes the whole window for each row of logits: for a graph of which no cache can be made. `tokens`,
// `logits`: as IncrementalOptions has them.
Result<std::unique_ptr<Decoder>> make_window_decoder(const dag::Graph& graph, const dag::Weights& weights,
                                                     const std::string& tokens, const std::string& logits,
                                                     std::shared_ptr<peer::State> state);

}  // namespace weft::serve
