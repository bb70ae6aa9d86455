// A ring on one thread: links that hold their frames for as long as a seed says, requests that come and go,
// stages that are lost. Whoever runs it asks at the end whether each text is that of one machine.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "serve/ring.h"
#include "tests/incremental/net.h"

namespace weft::incremental::testing {

// What a listener was told.
struct Told {
  std::vector<serve::Draw> draws;
  std::optional<serve::Finish> end;
  Status status{};
};
serve::Listener to(Told& told);
// Bit for bit, with the probabilities of all tokens that were asked for.
bool starts_with(const std::vector<serve::Draw>& all, const std::vector<serve::Draw>& first);

// One model, and stages of it by their ranges: worlds borrow them, so that their programs are made once.
class Pool {
 public:
  Pool(const Model& model, std::shared_ptr<const dag::Incremental> incremental, peer::Backend& backend)
      : model_(model), incremental_(std::move(incremental)), backend_(backend) {}
  // Lets go of its sequences in the end.
  std::unique_ptr<serve::Stage> borrow(const std::vector<dag::PartRange>& ranges);
  // Each request on one machine, by Engine::tick().
  std::vector<Told> on_one_machine(const std::vector<serve::Request>& requests);
  const std::shared_ptr<const dag::Incremental>& incremental() const { return incremental_; }
  size_t sequences() const;  // of all stages

 private:
  const Model& model_;
  std::shared_ptr<const dag::Incremental> incremental_;
  peer::Backend& backend_;
  std::map<std::vector<uint32_t>, std::unique_ptr<serve::Stage>> stages_;
  std::unique_ptr<serve::Decoder> decoder_;
};

enum class Loss {
  None,
  AllButTheEntry,  // they are new
  All,             // requests are added again with what was drawn
  Passes,          // what is under way alone: stages keep what they have
  Some,            // as a new version of the plan has it: who is left goes on with what it has
};

// Who is new after a loss: stages from `begin` to `end`, and maybe the entry.
struct Renewed {
  size_t begin = 0, end = 0;
  bool entry = false;
};

// Runs a pass at a stage: as it is, or with a mistake.
using RunStage = std::function<Result<serve::Pass>(serve::RingStage& stage, const serve::Pass& pass)>;

struct WorldOptions {
  std::vector<uint32_t> cuts;  // between stages: the entry begins anew behind the last; none: it is alone
  serve::RingOptions ring{};
  bool cancels = true;
  Loss loss = Loss::None;
  size_t losses_max = 1;
  std::function<Renewed(Rng& rng, size_t stages)> renew{};  // with Some
  std::function<void(serve::Pass& pass)> on_history{};      // as it is sent: a mistake
  RunStage run_stage{};
  // The entry's own stage, by another that fails; requests may end as Failed then.
  std::function<std::unique_ptr<serve::Stage>(std::unique_ptr<serve::Stage>)> entry_stage{};
};

class World {
 public:
  World(Pool& pool, std::vector<serve::Request> requests, const WorldOptions& options, uint64_t seed);
  // What went wrong; empty: nothing. Everybody has been told an end then, and nobody keeps anything.
  std::string run();
  size_t most_under_way() const { return most_under_way_; }
  size_t failed() const;  // requests
  size_t lost() const { return lost_; }
  int64_t filled() const { return filled_; }  // positions of history that were sent

 private:
  struct Frame {
    uint64_t number = 0;
    std::vector<dag::Tensor> tensors;
  };
  class Watched;
  void make_stages();
  std::unique_ptr<serve::RingStage> make_stage(size_t i);
  void make_entry(uint64_t numbers_behind = 0);
  void send_history(size_t link, std::vector<serve::Pass> passes, const std::vector<dag::RowSpec>& edges);
  void note_round(const serve::Pass& pass);
  int64_t last_of(uint64_t sequence) const;
  void check_new(uint64_t sequence, int64_t first, int64_t computed);
  void lose_some();
  void add_again();
  void move();
  void begin();
  void deliver(size_t link);
  void send(size_t link, const serve::Pass& pass, const std::vector<dag::RowSpec>& edges);
  void add(size_t i);
  void add_next();
  void disturb();
  void lose();
  bool is_done() const;
  void check_bounds();
  std::string compared();
  void note(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }

  Pool& pool_;
  std::vector<serve::Request> requests_;
  WorldOptions options_;
  Rng rng_;
  std::unique_ptr<serve::RingEntry> entry_;
  std::vector<std::unique_ptr<serve::RingStage>> stages_;
  std::vector<std::deque<Frame>> links_;  // the last leads to the entry
  std::vector<Told> told_;
  std::vector<uint64_t> ids_;
  std::vector<bool> cancelled_;
  size_t added_ = 0;
  bool is_idle_ = false;  // of the entry, when it was asked last
  size_t lost_ = 0;
  bool is_stale_ = false;  // the entry is new, and no pass has told the stages yet
  int64_t filled_ = 0;
  std::map<uint64_t, int64_t> round_;  // positions that came round, of sequences that are kept
  size_t most_under_way_ = 0;
  std::string fault_;
};

}  // namespace weft::incremental::testing
