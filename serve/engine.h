// Serves sequences: which of them get rows of the next pass, what is drawn for them, when they end. It reads
// no clock and starts no thread. With a decoder, whoever drives it calls tick() until there is nothing to do;
// else begin() says what is to be computed, and finish() takes the logits. Several passes may be under way
// then.
//
// A pass first has one row for each sequence that is generating, so that all of them go on; then the oldest
// prompts, in pieces, as far as rows are left. Passes that are under way at once have equal shares of those
// that generate; the pieces of a prompt may be in several of them, which compute in the order in which they
// began. Memory for all positions of a sequence is granted before it starts; until there is some it waits, in
// the order of arrival.
//
// With a draft, a sequence that generates has guessed tokens behind its pending one, with logits for each.
// They may be in several passes under way at once. The first token that is drawn otherwise ends an epoch:
// logits of positions behind it are dropped, and the next piece begins at the missed position.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "serve/decoder.h"
#include "serve/draft.h"
#include "serve/model_limits.h"
#include "serve/pass.h"
#include "serve/passes_under_way.h"
#include "serve/request.h"
#include "serve/served_sequence.h"

namespace weft::serve {

struct EngineOptions {
  Bytes cache_bytes{int64_t{1} << 30};  // for all sequences together
  size_t sequences_max = 64;            // that are being served
  size_t waiting_max = 256;             // that wait
  // Rows of a pass for prompts while others generate, whose tokens wait for them: eight rows take a CPU less
  // than twice what one takes (docs/RESULTS.md). Where more prompts are read than texts generate, as when an
  // entry is new and has them all to compute again, they have all that is left.
  int64_t prompt_rows = 7;
  size_t passes_max = 1;           // under way at once
  uint64_t numbers_behind = 0;     // the first request and the first pass have the number behind this one
  std::shared_ptr<Draft> draft{};  // none: nothing is guessed
  // Of the passes under way those that texts share; the others are for guesses alone. 0: all.
  size_t passes_shared = 0;
  int64_t draft_rows = 7;  // guesses in one pass, of one sequence, at most
  // Of the time of a pass with one row, what each row more takes: eight rows take a CPU less than twice what
  // one takes; over a slow link a row may take as long as a pass.
  double row_cost = 1.0 / 7;
};

class Engine {
 public:
  // They outlive it. Without a decoder it has no tick().
  Engine(Decoder& decoder, const EngineOptions& options)
      : model_(decoder), decoder_(&decoder), options_(options), last_id_(options.numbers_behind) {}
  Engine(const ModelLimits& model, const EngineOptions& options)
      : model_(model), options_(options), last_id_(options.numbers_behind) {}

  // Errors: those of RequestLimits, with the memory of an empty engine; ResourceExhausted while waiting_max
  // wait.
  Result<uint64_t> add(Request request, Listener listener);
  // on_end is told Cancelled when the next pass begins, and nothing else any more. Unknown numbers are
  // ignored.
  void cancel(uint64_t id);
  void cancel_all();
  // on_end is told Failed, now. Unknown numbers are ignored.
  void give_up(uint64_t id, const Status& status);

  struct Tick {
    int64_t rows = 0;       // of positions that were computed
    int64_t generated = 0;  // tokens
    int64_t guessed = 0;    // rows that were of guesses
    int64_t accepted = 0;   // guesses that were drawn
    bool idle = false;      // nothing was to be done
    Status status{};        // of the pass
  };
  // One pass, and what comes of it. A failed pass ends those sequences that were in it. REQUIRES: a decoder.
  Tick tick();

  // What a pass has to compute: tokens piece by piece. Sequences are numbered as requests are. Without a
  // decoder, sequences that have ended come first, as ends; a pass may have nothing else.
  struct Begun {
    uint64_t number = 0;  // ascending
    std::vector<PassPiece> pieces;
    std::vector<int64_t> tokens;
  };
  // Nothing: none is to be done, or passes_max are under way.
  std::optional<Begun> begin();
  // Logits f32[sum of PassPiece::logits, vocabulary], piece by piece, of the sequences that it wants still.
  // An error, or other logits, end those of the pass; what it should have told as ended is told again.
  // Status: that error; InvalidArgument for a pass that is not under way, and then nothing has changed.
  // With a draft, passes finish in the order in which they began.
  Tick finish(uint64_t pass, const Result<dag::Tensor>& logits);
  // Passes under way will not come back, and what has been computed is lost: all begin again from their first
  // position, with what has been drawn. Ends that they told are told again.
  void restart();
  // The same where some are kept: they go on with the first position that a pass under way has. Passes are
  // numbered behind `numbers_behind` from here on, if that is more. REQUIRES: no decoder.
  using IsKept = std::function<bool(uint64_t id)>;
  void resume(const IsKept& is_kept, uint64_t numbers_behind);

  // Whether logits of this sequence in a pass that is under way are of use: not when it has ended, nor when a
  // guess before them was wrong.
  bool wants(uint64_t pass, uint64_t id) const;
  // The first position of which a pass is to be begun.
  int64_t begun(uint64_t id) const;
  bool serves(uint64_t id) const { return serving_.contains(id); }
  size_t serving() const { return serving_.size(); }
  size_t waiting() const { return waiting_.size(); }
  Bytes granted() const { return granted_; }

 private:
  using Served = ServedSequence;
  using Turn = PassTurn;

  RequestLimits limits() const { return {model_.context(), model_.vocabulary()}; }
  int64_t positions_of(const Request& request) const { return limits().positions_of(request); }
  void take_back();
  void admit();
  void end_cancelled();
  std::vector<Served*> next_generating(bool& any);
  std::vector<Turn> share_rows();
  bool makes_room(Served& served, int64_t rows);
  int64_t rows_for_prompts() const;
  size_t generating() const;
  size_t reading() const;  // whose prompts have rows that are in no pass yet
  size_t shared() const;
  size_t guessed_passes() const;
  bool may_guess_alone() const;
  int64_t guess(std::vector<Turn>& turns, int64_t most);
  std::vector<int64_t> guesses_of(Served& served, int64_t most, double cost);
  void add_rows(const Turn& turn, Begun& begun);
  Result<dag::Tensor> decode(const Begun& begun);
  void take_all(const std::vector<Turn>& turns, const dag::Tensor& logits, Tick& tick);
  void take(Served& served, std::span<const float> logits, Tick& tick);
  bool is_wanted(const Turn& turn) const;
  void end(uint64_t id, Finish finish, const Status& status = {});

  const ModelLimits& model_;
  Decoder* decoder_ = nullptr;
  EngineOptions options_;
  uint64_t last_id_;
  Bytes granted_{};
  std::deque<Served> waiting_;
  std::map<uint64_t, Served> serving_;  // in the order of arrival
  PassesUnderWay passes_{options_.numbers_behind};
};

}  // namespace weft::serve
