// Serves sequences with a decoder: which of them get rows of the next pass, what is drawn for them, when they
// end. It reads no clock and starts no thread: whoever drives it calls tick() until there is nothing to do.
//
// A pass first has one row for each sequence that is generating, so that all of them go on; then the oldest
// prompts, in pieces, as far as rows are left. Memory for all positions of a sequence is granted before it
// starts; until there is some it waits, in the order of arrival.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "serve/decoder.h"
#include "serve/sampler.h"

namespace weft::serve {

struct EngineOptions {
  Bytes cache_bytes{int64_t{1} << 30};  // for all sequences together
  size_t sequences_max = 64;            // that are being served
  size_t waiting_max = 256;             // that wait
  // Rows of a pass for prompts while others generate, whose tokens wait for them: eight rows take a CPU less than
  // twice what one takes (docs/RESULTS.md).
  int64_t prompt_rows = 7;
};

struct Request {
  std::vector<int64_t> prompt;  // at least one token
  int64_t tokens_max = -1;      // to be generated; -1: up to the context
  SamplingOptions sampling{};
  std::vector<int64_t> ends{};  // tokens that end it; they are not told
};

enum class Finish : uint8_t {
  Stop,       // a token that ends it, or the listener has had enough
  Length,     // tokens_max, or the context
  Cancelled,
  Failed,
};

struct Generated {
  Draw draw;
  int64_t position = 0;  // of the token in the sequence
};

// Told on the thread that drives the engine. It may add and cancel requests, but not tick().
struct Listener {
  std::function<bool(const Generated&)> on_token;                // false: enough
  std::function<void(Finish finish, const Status& status)> on_end;  // once
};

class Engine {
 public:
  // The decoder outlives it.
  Engine(Decoder& decoder, const EngineOptions& options) : decoder_(decoder), options_(options) {}

  // Errors: InvalidArgument for an empty prompt and for tokens that the model does not have; OutOfRange when
  // prompt and tokens_max do not fit the context, or not even an empty engine's memory (then with how many
  // positions would); ResourceExhausted while waiting_max wait.
  Result<uint64_t> add(Request request, Listener listener);
  // on_end is told Cancelled at the next tick, and nothing else any more. Unknown numbers are ignored.
  void cancel(uint64_t id);
  void cancel_all();

  struct Tick {
    int64_t rows = 0;         // of positions that were computed
    int64_t generated = 0;    // tokens
    bool idle = false;        // nothing was to be done
    Status status{};          // of the pass
  };
  // One pass, and what comes of it. A failed pass ends those sequences that were in it.
  Tick tick();

  size_t serving() const { return serving_.size(); }
  size_t waiting() const { return waiting_.size(); }
  Bytes granted() const { return granted_; }

 private:
  struct Served {
    uint64_t id = 0;
    Request request;
    Listener listener;
    std::unique_ptr<Sequence> sequence;
    std::vector<int64_t> tokens;  // all that are known
    Bytes granted{};
    bool cancelled = false;
    int64_t pending() const { return static_cast<int64_t>(tokens.size()) - sequence->length(); }
    bool generates() const { return tokens.size() > request.prompt.size(); }
  };
  struct Turn {
    Served* served = nullptr;
    int64_t rows = 0;
    bool draws = false;  // all that is known will have been computed
  };

  Status check(const Request& request) const;
  int64_t positions_of(const Request& request) const;
  void admit();
  void end_cancelled();
  std::vector<Turn> share_rows();
  Status run(const std::vector<Turn>& turns, Tick& tick);
  // Whether it has ended.
  bool take(Served& served, std::span<const float> logits);
  void end(uint64_t id, Finish finish, const Status& status = {});

  Decoder& decoder_;
  EngineOptions options_;
  uint64_t last_id_ = 0;
  Bytes granted_{};
  std::deque<Served> waiting_;
  std::map<uint64_t, Served> serving_;  // in the order of arrival
};

}  // namespace weft::serve
