// A model in stages that stand in a ring. The entry computes the first parts and the last ones; a pass goes
// from it through all other stages and comes back. Several passes are under way at once, so that no stage
// waits for the ring to be gone round.
//
// Passes reach each stage in the order in which they were begun; sequences are numbered by the entry. What a
// sequence keeps is let go everywhere with the pass that says that it has ended. Caches are granted in
// positions, of all sequences together, so that each stage's share of the memory is bounded.
//
// Where a stage is lost another takes its place, and nothing else is computed again: each stage keeps the
// rows that it sent on (row_history.h), and gives them to who comes new behind it as history, before the next
// pass. Which sequences are kept the entry says with their pieces; what the others had is computed again. A
// stage cannot know whether all that it sent arrived, but that the passes are bounded which are under way:
// what it is not sure of it sends again, and who has it already drops it.
//
// One thread each, that which drives the stage's backend.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "serve/engine.h"
#include "serve/pass.h"
#include "serve/row_history.h"
#include "serve/stage.h"

namespace weft::serve {

// The same at all stages.
struct RingOptions {
  int64_t rows_max = 64;      // positions of a pass
  size_t passes_max = 1;      // under way at once
  size_t sequences_max = 64;  // that are being served
  int64_t positions_max = 0;  // of all sequences together; each takes some more than it needs (serve/cache.h)
  // The entry's alone.
  size_t waiting_max = 256;
  int64_t prompt_rows = 32;        // of a pass, while others generate
  int64_t kept_positions_max = 0;  // of sequences that are kept, each as long as it may become
  uint64_t numbers_behind = 0;     // the first request and the first pass are numbered behind it
  std::shared_ptr<Draft> draft{};  // none: nothing is guessed
  double row_cost = 1;             // of a guess, and passes that texts share, as EngineOptions has them
  size_t passes_shared = 0;
};

// Any stage but the entry.
class RingStage {
 public:
  // `stage` has this range alone. Errors: InvalidArgument for a range that has the first part or the last,
  // and for options without sense.
  static Result<std::unique_ptr<RingStage>> create(std::shared_ptr<const dag::Incremental> model,
                                                   dag::PartRange range, std::unique_ptr<Stage> stage,
                                                   const RingOptions& options);

  // The pass as it goes on to the next stage; without a piece it goes no further: history of what is here.
  // Errors, after which it is as if the pass had not come, but that sequences of an earlier entry have gone:
  // InvalidArgument for a number that is not above the last one's, pieces that are of no sense or leave out
  // positions, rows of another form; ResourceExhausted beyond sequences_max or positions_max. What a device
  // says: then this stage is of no more use. NaN goes on as other numbers do: the entry finds whose it is.
  Result<Pass> run(const Pass& in);
  // A new version of the plan: what was under way is lost, and others may be new. A stage that was not given
  // all of its own history is new, too.
  void resume(bool same_behind);
  // What goes to the stage behind before that pass, which is to be run next.
  std::vector<Pass> history(const Pass& before);
  size_t sequences() const { return kept_.size(); }
  int64_t positions() const;                          // that memory is taken for
  int64_t kept() const { return sent_.positions(); }  // of which rows are kept

  const std::vector<dag::RowSpec>& edges_in() const { return in_; }
  const std::vector<dag::RowSpec>& edges_out() const { return out_; }
  PassLimits limits() const;

 private:
  struct Kept {
    int64_t length = 0;     // positions that have been computed
    int64_t positions = 0;  // that memory is taken for
  };
  RingStage(std::shared_ptr<const dag::Incremental> model, dag::PartRange range, std::unique_ptr<Stage> stage,
            const RingOptions& options);
  Status check_form(const Pass& in) const;
  Status check_follows(const Pass& in) const;
  Status check_room(const Pass& in) const;
  void forget_before(uint64_t first);
  Kept after(const PassPiece& piece) const;

  std::shared_ptr<const dag::Incremental> model_;
  std::unique_ptr<Stage> stage_;
  RingOptions options_;
  std::vector<dag::RowSpec> in_, out_;
  std::map<uint64_t, Kept> kept_;  // by sequence
  uint64_t last_ = 0;              // number of the last pass
  RowHistory sent_;
  bool is_whole_ = false;  // a pass came that was no history: all history has come before it
  bool fills_ = false;     // the stage behind, before the next such pass
  size_t passes_ = 0;      // such ones, of this version of the plan
};

class RingEntry {
 public:
  // `stage` has these ranges: the first part and the last in two, or all of the model in one, when it is
  // alone. Errors: InvalidArgument for other ranges, and for options without sense.
  static Result<std::unique_ptr<RingEntry>> create(std::shared_ptr<const dag::Incremental> model,
                                                   std::vector<dag::PartRange> ranges,
                                                   std::unique_ptr<Stage> stage, const RingOptions& options);

  // As Engine has them. A request may begin with tokens that were drawn before.
  Result<uint64_t> add(Request request, Listener listener) {
    return engine_.add(std::move(request), std::move(listener));
  }
  void cancel(uint64_t id) { engine_.cancel(id); }
  void cancel_all() { engine_.cancel_all(); }

  struct Step {
    std::vector<Pass> history{};  // to stage 1, first
    std::optional<Pass> send{};   // to stage 1
    Engine::Tick tick{};          // idle: nothing was to be done, or passes_max are under way
  };
  // Begins a pass and computes the first parts; alone, all of it. Called until idle, again after each add(),
  // cancel() and finish(). Requests that the model has no memory for end with that error. Errors: what the
  // device says; then this stage is of no more use.
  Result<Step> next();
  // A pass that has come round: computes the last parts, draws, tells listeners; nothing of those that have
  // ended since. Requests with rows that are not finite (spoilt_rows.h) end as Corrupted. Errors, after which
  // it is as if the pass had not come: InvalidArgument for one that is not the oldest under way, other pieces
  // than were sent, rows of another form. What the device says: then this stage is of no more use.
  Result<Engine::Tick> finish(const Pass& pass);

  // What is under way will not come back. The other stages may be new, or have seen any number of the passes.
  // Each request goes on from what has been drawn for it, and is computed again from its first position.
  void restart();
  // The same in a new version of the plan, where the stages that there were have what they had: requests go
  // on with the positions that have not come round. Passes are numbered behind `numbers_behind`.
  void resume(bool same_behind, uint64_t numbers_behind);

  bool is_alone() const { return alone_; }
  size_t serving() const { return engine_.serving(); }
  size_t waiting() const { return engine_.waiting(); }
  size_t under_way() const { return under_way_.size(); }
  int64_t positions() const { return engine_.granted().value; }  // granted
  int64_t kept() const { return sent_.positions(); }

  const std::vector<dag::RowSpec>& edges_in() const { return in_; }    // of what comes round
  const std::vector<dag::RowSpec>& edges_out() const { return out_; }  // of what goes to stage 1
  PassLimits limits() const { return {limits_->rows_max(), limits_->context()}; }

 private:
  RingEntry(std::shared_ptr<const dag::Incremental> model, std::span<const dag::PartRange> ranges,
            std::unique_ptr<Stage> stage, const RingOptions& options);
  Status check(const Pass& pass) const;
  Pass still_wanted(const Pass& pass) const;
  dag::Tensor no_logits() const;
  void mark_kept(std::vector<PassPiece>& pieces) const;

  std::shared_ptr<const dag::Incremental> model_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<ModelLimits> limits_;
  Engine engine_;
  bool alone_;
  int64_t kept_positions_max_;
  std::vector<dag::RowSpec> in_, out_;
  std::map<uint64_t, std::vector<PassPiece>> under_way_;  // pieces by number of the pass
  RowHistory sent_;
  bool fills_ = false;       // stage 1, before the next pass
  bool came_round_ = false;  // a pass of this version of the plan
};

}  // namespace weft::serve
